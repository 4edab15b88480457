// A torch device of its own, built outside PyTorch: the device that PyTorch calls PrivateUse1.
//
// Its memory is pages that nobody may touch (PROT_NONE) but the device's own kernels, which
// open them while they run: code of the host that reads or writes a tensor's memory ends the
// process, as it would not find the memory of a real device either. Every operator that is not
// written out here runs on the device too: by the CPU's kernels on the device's memory, with no
// copy. What is copied between host and device is counted.

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>

namespace
{

constexpr auto kDevice = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 2;

// ---- counters: what crossed between host and device, and what ran there
// ------------------------

std::atomic<int64_t> to_device{0}, to_host{0}, bytes_in{0}, bytes_out{0}, kernels{0},
    operators{0};

// ---- memory
// ------------------------------------------------------------------------------------

class Memory
{
  public:
    void *allocate(size_t size)
    {
        if (size == 0)
            return nullptr;
        static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        const size_t pages = (size + page - 1) / page * page;
        void *at = mmap(nullptr, pages, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        TORCH_CHECK(at != MAP_FAILED, "the device has no memory for ", size, " bytes");
        const std::lock_guard<std::mutex> held(lock_);
        blocks_[static_cast<char *>(at)] = {pages, 0};
        return at;
    }

    void free(void *at)
    {
        const std::lock_guard<std::mutex> held(lock_);
        const auto found = blocks_.find(static_cast<char *>(at));
        if (found == blocks_.end())
            return;
        munmap(at, found->second.size);
        blocks_.erase(found);
    }

    // Let kernels in; as often as shut.
    void open(const void *at)
    {
        change(at, 1);
    }
    void shut(const void *at)
    {
        change(at, -1);
    }

  private:
    struct Block {
        size_t size;
        int open;
    };

    void change(const void *address, int by)
    {
        const std::lock_guard<std::mutex> held(lock_);
        auto found = blocks_.upper_bound(static_cast<char *>(const_cast<void *>(address)));
        TORCH_INTERNAL_ASSERT(found != blocks_.begin(), "not the device's memory");
        --found;
        Block &block = found->second;
        TORCH_INTERNAL_ASSERT(address < found->first + block.size, "not the device's memory");
        block.open += by;
        if (block.open == (by > 0 ? 1 : 0))
            mprotect(found->first, block.size, by > 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
    }

    std::mutex lock_;
    std::map<char *, Block> blocks_;
};

Memory memory;

thread_local c10::DeviceIndex current = 0;

struct Allocator final : c10::Allocator {
    c10::DataPtr allocate(size_t size) override
    {
        void *at = memory.allocate(size);
        return {at, at, &Allocator::release, c10::Device(kDevice, current)};
    }
    c10::DeleterFnPtr raw_deleter() const override
    {
        return &Allocator::release;
    }
    void copy_data(void *dest, const void *src, size_t size) const override
    {
        memory.open(dest);
        memory.open(src);
        default_copy_data(dest, src, size);
        memory.shut(src);
        memory.shut(dest);
    }
    static void release(void *at)
    {
        memory.free(at);
    }
};

Allocator allocator;
REGISTER_ALLOCATOR(kDevice, &allocator)

// ---- devices, streams and hooks that PyTorch asks for
// ------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
    static constexpr c10::DeviceType static_type = kDevice;

    c10::DeviceType type() const override
    {
        return kDevice;
    }
    c10::Device exchangeDevice(c10::Device device) const override
    {
        const c10::Device before = getDevice();
        setDevice(device);
        return before;
    }
    c10::Device getDevice() const override
    {
        return {kDevice, current};
    }
    void setDevice(c10::Device device) const override
    {
        TORCH_CHECK(device.index() < kDevices, "there is no device ", device);
        uncheckedSetDevice(device);
    }
    void uncheckedSetDevice(c10::Device device) const noexcept override
    {
        if (device.has_index())
            current = device.index();
    }
    c10::Stream getStream(c10::Device device) const override
    {
        return c10::Stream(c10::Stream::DEFAULT, device.has_index() ? device : getDevice());
    }
    c10::Stream getDefaultStream(c10::Device device) const override
    {
        return getStream(device);
    }
    c10::Stream exchangeStream(c10::Stream stream) const override
    {
        return stream;
    }
    c10::DeviceIndex deviceCount() const noexcept override
    {
        return kDevices;
    }
    bool queryStream(const c10::Stream &) const override
    {
        return true;
    }
    void synchronizeStream(const c10::Stream &) const override
    {
    }
    void synchronizeDevice(const c10::DeviceIndex) const override
    {
    }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override
    {
        return true;
    }
    bool isAvailable() const override
    {
        return true;
    }
    bool hasPrimaryContext(c10::DeviceIndex) const override
    {
        return true;
    }
    c10::DeviceIndex deviceCount() const override
    {
        return kDevices;
    }
    c10::DeviceIndex getCurrentDevice() const override
    {
        return current;
    }
    void setCurrentDevice(c10::DeviceIndex index) const override
    {
        current = index;
    }
    void resizePrivateUse1Bytes(const c10::Storage &storage, size_t size) const override
    {
        c10::DataPtr made = allocator.allocate(size);
        const size_t kept = std::min(size, storage.nbytes());
        if (kept > 0)
            allocator.copy_data(made.get(), storage.data(), kept);
        storage.set_data_ptr_noswap(std::move(made));
        storage.set_nbytes(size);
    }
};

Hooks hooks;
const bool hooked = [] {
    at::RegisterPrivateUse1HooksInterface(&hooks);
    return true;
}();

// ---- tensors as a kernel sees them
// -------------------------------------------------------------

// Opens the memory of tensors for as long as it lives, and lends it to the CPU's kernels.
class Lent
{
  public:
    ~Lent()
    {
        for (const void *at : open_)
            memory.shut(at);
    }

    // A tensor of the host's over the same memory; one of the host's own as it is.
    at::Tensor operator()(const at::Tensor &tensor)
    {
        if (!tensor.defined() || tensor.device().type() != kDevice)
            return tensor;
        if (tensor.numel() == 0) // it may be there to be resized
            return at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(),
                                                 tensor.scalar_type());
        c10::Storage storage = tensor.storage();
        const auto size = static_cast<int64_t>(storage.nbytes());
        void *at = storage.mutable_data();
        memory.open(at);
        open_.push_back(at);
        at::Tensor all = at::from_blob(at, {size}, c10::TensorOptions().dtype(at::kByte));
        at::Tensor made = at::detail::empty_cpu({0}, tensor.scalar_type());
        made.unsafeGetTensorImpl()->set_storage_keep_dtype(all.storage());
        made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                          tensor.storage_offset());
        return made;
    }

  private:
    std::vector<const void *> open_;
};

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> type,
                 std::optional<at::Layout>, std::optional<at::Device> device,
                 std::optional<bool>, std::optional<at::MemoryFormat> format)
{
    const c10::DeviceGuard guard(device.value_or(c10::Device(kDevice)));
    return at::detail::empty_generic(size, &allocator,
                                     c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                     c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> type, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>)
{
    const c10::DeviceGuard guard(device.value_or(c10::Device(kDevice)));
    return at::detail::empty_strided_generic(size, stride, &allocator,
                                             c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                             c10::dtype_or_default(type));
}

at::Tensor copy_from(const at::Tensor &from, const at::Tensor &to, bool)
{
    const bool in = from.device().type() != kDevice, out = to.device().type() != kDevice;
    if (in) {
        ++to_device;
        bytes_in += static_cast<int64_t>(from.nbytes());
    }
    if (out) {
        ++to_host;
        bytes_out += static_cast<int64_t>(from.nbytes());
    }
    Lent lent;
    lent(to).copy_(lent(from));
    return to;
}

at::Tensor copy_from_and_resize(const at::Tensor &from, const at::Tensor &to)
{
    to.resize_(from.sizes());
    return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor &tensor)
{
    ++to_host;
    bytes_out += static_cast<int64_t>(tensor.nbytes());
    Lent lent;
    return lent(tensor).item();
}

const at::Tensor &resize_(const at::Tensor &tensor, c10::SymIntArrayRef size,
                          std::optional<at::MemoryFormat>)
{
    const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
    auto *impl = tensor.unsafeGetTensorImpl();
    const size_t needed = at::detail::computeStorageNbytesContiguous(
        sizes, tensor.dtype().itemsize(), static_cast<size_t>(tensor.storage_offset()));
    if (needed > tensor.storage().nbytes())
        hooks.resizePrivateUse1Bytes(tensor.storage(), needed);
    impl->set_sizes_contiguous(sizes);
    return tensor;
}

// ---- the other operators: the CPU's kernels, run by the device on its own memory
// ---------------

// A tensor of the device with what a kernel made.
at::Tensor kept(const at::Tensor &made, c10::Device device)
{
    at::Tensor result = empty_strided(made.sizes(), made.strides(), made.scalar_type(),
                                      std::nullopt, device, std::nullopt);
    Lent lent;
    lent(result).copy_(made);
    return result;
}

class Call
{
  public:
    // Lends the arguments, and names the device where an argument does.
    c10::IValue given(const c10::IValue &value)
    {
        if (value.isTensor())
            return tensor(value.toTensor());
        if (value.isTensorList()) {
            std::vector<at::Tensor> found;
            for (const at::Tensor &each : value.toTensorVector())
                found.push_back(tensor(each));
            return found;
        }
        if (value.isOptionalTensorList()) {
            c10::List<std::optional<at::Tensor>> found;
            for (const std::optional<at::Tensor> &each : value.toOptionalTensorVector())
                found.push_back(each ? std::make_optional(tensor(*each)) : std::nullopt);
            return found;
        }
        if (value.isDevice() && value.toDevice().type() == kDevice) {
            device_ = value.toDevice();
            return c10::Device(c10::DeviceType::CPU);
        }
        return value;
    }

    // An argument that was written to is itself; what is new goes to the device's memory.
    c10::IValue result(const c10::IValue &value)
    {
        if (value.isTensor())
            return back(value.toTensor());
        if (value.isTensorList()) {
            std::vector<at::Tensor> found;
            for (const at::Tensor &each : value.toTensorVector())
                found.push_back(back(each));
            return found;
        }
        return value;
    }

  private:
    at::Tensor tensor(const at::Tensor &value)
    {
        at::Tensor made = lent_(value);
        if (value.defined() && value.device().type() == kDevice) {
            device_ = value.device();
            pairs_.emplace_back(made, value);
        }
        return made;
    }

    at::Tensor back(const at::Tensor &made)
    {
        for (auto &[own, value] : pairs_)
            if (own.is_same(made)) {
                if (made.sizes() !=
                    value.sizes()) { // resized: the host's memory has the result
                    value.resize_(made.sizes());
                    Lent lent;
                    lent(value).copy_(made);
                }
                return value;
            }
        return made.defined() ? kept(made, device_) : made;
    }

    Lent lent_;
    c10::Device device_{kDevice, current};
    std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
};

void on_device(const c10::OperatorHandle &op, torch::jit::Stack *stack)
{
    const size_t count = op.schema().arguments().size();
    ++operators;
    Call call;
    torch::jit::Stack own;
    for (const c10::IValue &value : torch::jit::last(*stack, count))
        own.push_back(call.given(value));
    torch::jit::drop(*stack, count);
    op.callBoxed(&own);
    for (const c10::IValue &value : own)
        stack->push_back(call.result(value));
}

// ---- kernels of the device's own, for backends that compile for it
// ------------------------------

at::Tensor contiguous_result(const at::Tensor &like, at::IntArrayRef size)
{
    return empty(size, like.scalar_type(), std::nullopt, like.device(), std::nullopt,
                 std::nullopt);
}

void check(const at::Tensor &tensor)
{
    TORCH_CHECK(tensor.device().type() == kDevice, "a kernel of the device got a tensor on ",
                tensor.device());
    TORCH_CHECK(tensor.scalar_type() == at::kFloat, "a kernel of the device got ",
                tensor.scalar_type());
}

at::Tensor mm(const at::Tensor &a, const at::Tensor &b)
{
    check(a), check(b);
    ++kernels;
    const int64_t rows = a.size(0), inner = a.size(1), columns = b.size(1);
    at::Tensor result = contiguous_result(a, {rows, columns});
    Lent lent;
    const at::Tensor x = lent(a), y = lent(b), z = lent(result);
    const auto *p = x.const_data_ptr<float>(), *q = y.const_data_ptr<float>();
    auto *out = z.mutable_data_ptr<float>();
    for (int64_t m = 0; m < rows; m++)
        for (int64_t n = 0; n < columns; n++) {
            double sum = 0;
            for (int64_t k = 0; k < inner; k++)
                sum += static_cast<double>(p[m * x.stride(0) + k * x.stride(1)]) *
                       static_cast<double>(q[k * y.stride(0) + n * y.stride(1)]);
            out[m * columns + n] = static_cast<float>(sum);
        }
    return result;
}

// Element by element over tensors of one shape; `op` is one of the letters below.
at::Tensor pointwise(std::string_view op, const at::Tensor &a, const at::Tensor &b)
{
    check(a), check(b);
    ++kernels;
    const auto size = at::infer_size(a.sizes(), b.sizes());
    at::Tensor result = contiguous_result(a, size);
    Lent lent;
    const at::Tensor x = lent(a).expand(size).contiguous(),
                     y = lent(b).expand(size).contiguous();
    const auto *p = x.const_data_ptr<float>(), *q = y.const_data_ptr<float>();
    at::Tensor z = lent(result);
    auto *out = z.mutable_data_ptr<float>();
    for (int64_t n = 0; n < x.numel(); n++)
        switch (op[0]) {
        case '+':
            out[n] = p[n] + q[n];
            break;
        case '-':
            out[n] = p[n] - q[n];
            break;
        case '*':
            out[n] = p[n] * q[n];
            break;
        case 'r':
            out[n] = p[n] > 0 ? p[n] : 0;
            break;
        case 'b':
            out[n] = q[n] > 0 ? p[n] : 0;
            break; // of relu, backwards
        default:
            TORCH_CHECK(false, "no kernel ", op);
        }
    return result;
}

std::vector<int64_t> counters()
{
    return {to_device, to_host, bytes_in, bytes_out, kernels, operators};
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m)
{
    m.impl("empty.memory_format", empty);
    m.impl("empty_strided", empty_strided);
    m.impl("_copy_from", copy_from);
    m.impl("_copy_from_and_resize", copy_from_and_resize);
    m.impl("_local_scalar_dense", local_scalar);
    m.impl("resize_", resize_);
    m.impl("as_strided", at::native::as_strided_tensorimpl);
    m.impl("view", at::native::view);
    m.impl("unfold", at::native::unfold);
    m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
    m.impl("set_.source_Tensor", at::native::set_tensor_);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m)
{
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_device>());
}

TORCH_LIBRARY(vault, m)
{
    m.def("mm(Tensor a, Tensor b) -> Tensor");
    m.def("pointwise(str op, Tensor a, Tensor b) -> Tensor");
    m.def("counters() -> int[]", counters);
}

TORCH_LIBRARY_IMPL(vault, PrivateUse1, m)
{
    m.impl("mm", mm);
    m.impl("pointwise", pointwise);
}
