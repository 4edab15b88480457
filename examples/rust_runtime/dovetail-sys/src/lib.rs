//! `dovetail.h`, as far as a program needs it that opens a file and runs it.
#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_void};

pub type dvt_status = i32;
pub const DVT_OK: dvt_status = 0;
pub const DVT_CPU: i32 = 1;
pub const DVT_FLOAT: u8 = 2;

#[repr(C)]
pub struct dvt_error {
    pub status: dvt_status,
    pub message: [c_char; 500],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct dvt_device {
    pub kind: i32,
    pub id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct dvt_dtype {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

#[repr(C)]
pub struct dvt_tensor {
    pub data: *mut c_void,
    pub device: dvt_device,
    pub ndim: i32,
    pub dtype: dvt_dtype,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

#[repr(C)]
pub struct dvt_managed {
    pub version: [u32; 2],
    pub manager_ctx: *mut c_void,
    pub deleter: unsafe extern "C" fn(*mut dvt_managed),
    pub flags: u64,
    pub tensor: dvt_tensor,
}

#[repr(C)]
pub struct dvt_tensor_info {
    pub name: *const c_char,
    pub dtype: dvt_dtype,
    pub ndim: i32,
    pub shape: *const i64,
}

/// Opaque: reached by pointer only.
#[repr(C)]
pub struct dvt_artifact {
    _private: [u8; 0],
}

extern "C" {
    pub fn dvt_version_text() -> *const c_char;
    pub fn dvt_status_text(status: dvt_status) -> *const c_char;
    pub fn dvt_open(
        path: *const c_char,
        options: *const c_void,
        artifact: *mut *mut dvt_artifact,
        error: *mut dvt_error,
    ) -> dvt_status;
    pub fn dvt_close(artifact: *mut dvt_artifact);
    pub fn dvt_input_count(artifact: *const dvt_artifact) -> usize;
    pub fn dvt_output_count(artifact: *const dvt_artifact) -> usize;
    pub fn dvt_input_info(artifact: *const dvt_artifact, index: usize) -> *const dvt_tensor_info;
    pub fn dvt_output_info(artifact: *const dvt_artifact, index: usize) -> *const dvt_tensor_info;
    pub fn dvt_run(
        artifact: *mut dvt_artifact,
        options: *const c_void,
        inputs: *const dvt_tensor,
        input_count: usize,
        outputs: *mut *mut dvt_managed,
        output_count: usize,
        error: *mut dvt_error,
    ) -> dvt_status;
}
