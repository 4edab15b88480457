//! Runs an artifact from Rust: no Python, no PyTorch.
//!
//! Inputs are float32 and filled with 0, 0.01, 0.02, …; dynamic sizes are 2.

use dovetail_sys::*;
use std::ffi::{CStr, CString};

fn text(pointer: *const std::ffi::c_char) -> String {
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

fn check(status: dvt_status, error: &dvt_error) -> Result<(), String> {
    if status == DVT_OK {
        return Ok(());
    }
    let kind = text(unsafe { dvt_status_text(status) });
    Err(format!("{kind}: {}", text(error.message.as_ptr())))
}

/// An open file; closed when it goes out of scope.
struct Model(*mut dvt_artifact);

impl Drop for Model {
    fn drop(&mut self) {
        unsafe { dvt_close(self.0) }
    }
}

impl Model {
    fn open(path: &str) -> Result<Model, String> {
        let path = CString::new(path).map_err(|e| e.to_string())?;
        let mut model = std::ptr::null_mut();
        let mut error = dvt_error { status: 0, message: [0; 500] };
        let status =
            unsafe { dvt_open(path.as_ptr(), std::ptr::null(), &mut model, &mut error) };
        check(status, &error)?;
        Ok(Model(model))
    }

    fn input_shapes(&self) -> Result<Vec<Vec<i64>>, String> {
        let count = unsafe { dvt_input_count(self.0) };
        (0..count)
            .map(|i| {
                let info = unsafe { &*dvt_input_info(self.0, i) };
                if (info.dtype.code, info.dtype.bits) != (DVT_FLOAT, 32) {
                    return Err(format!("input {} is not float32", text(info.name)));
                }
                let shape = unsafe { std::slice::from_raw_parts(info.shape, info.ndim as usize) };
                Ok(shape.iter().map(|&size| if size < 0 { 2 } else { size }).collect())
            })
            .collect()
    }

    /// Each output by name, its elements in the order they lie in.
    fn run(&self, inputs: &mut [(Vec<i64>, Vec<f32>)]) -> Result<Vec<(String, Vec<f32>)>, String> {
        let given: Vec<dvt_tensor> = inputs
            .iter_mut()
            .map(|(shape, data)| dvt_tensor {
                data: data.as_mut_ptr().cast(),
                device: dvt_device { kind: DVT_CPU, id: 0 },
                ndim: shape.len() as i32,
                dtype: dvt_dtype { code: DVT_FLOAT, bits: 32, lanes: 1 },
                shape: shape.as_mut_ptr(),
                strides: std::ptr::null_mut(),
                byte_offset: 0,
            })
            .collect();
        let count = unsafe { dvt_output_count(self.0) };
        let mut made = vec![std::ptr::null_mut::<dvt_managed>(); count];
        let mut error = dvt_error { status: 0, message: [0; 500] };
        let status = unsafe {
            dvt_run(
                self.0,
                std::ptr::null(),
                given.as_ptr(),
                given.len(),
                made.as_mut_ptr(),
                count,
                &mut error,
            )
        };
        check(status, &error)?;
        Ok(made.iter().enumerate().map(|(i, &output)| self.take(i, output)).collect())
    }

    fn take(&self, index: usize, output: *mut dvt_managed) -> (String, Vec<f32>) {
        let name = text(unsafe { (*dvt_output_info(self.0, index)).name });
        let tensor = unsafe { &(*output).tensor };
        let shape = unsafe { std::slice::from_raw_parts(tensor.shape, tensor.ndim as usize) };
        let count = shape.iter().product::<i64>() as usize;
        let values = match (tensor.dtype.code, tensor.dtype.bits) {
            (DVT_FLOAT, 32) => unsafe {
                std::slice::from_raw_parts(tensor.data.cast::<f32>(), count).to_vec()
            },
            _ => Vec::new(),
        };
        unsafe { ((*output).deleter)(output) };
        (name, values)
    }
}

fn run(path: &str) -> Result<(), String> {
    let model = Model::open(path)?;
    let mut inputs: Vec<(Vec<i64>, Vec<f32>)> = model
        .input_shapes()?
        .into_iter()
        .map(|shape| {
            let count = shape.iter().product::<i64>();
            (shape, (0..count).map(|i| 0.01 * i as f32).collect())
        })
        .collect();
    for (name, values) in model.run(&mut inputs)? {
        let shown: Vec<String> = values.iter().take(8).map(|v| format!("{v:.6}")).collect();
        println!("{name}: {} ({} values)", shown.join(" "), values.len());
    }
    Ok(())
}

fn main() {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: run_artifact model.dvt");
        std::process::exit(2);
    };
    if let Err(problem) = run(&path) {
        eprintln!("{problem}");
        std::process::exit(1);
    }
}
