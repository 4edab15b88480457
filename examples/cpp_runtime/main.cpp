// Runs an artifact from C++: no Python, no PyTorch.
//
//     run model.dvt
//
// Inputs are filled with 0, 0.01, 0.02, ... (whole numbers: zeros); dynamic sizes are the least
// that the model takes. Outputs go to memory of this program's own.
#include <dovetail.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace
{

[[noreturn]] void fail(dvt_status status, const dvt_error &error)
{
    throw std::runtime_error(std::string(dvt_status_text(status)) + ": " + error.message);
}

struct Closes {
    void operator()(dvt_artifact *model) const
    {
        dvt_close(model);
    }
};
using Model = std::unique_ptr<dvt_artifact, Closes>;

Model open(const char *path)
{
    dvt_artifact *model = nullptr;
    dvt_error error{};
    if (dvt_status status = dvt_open(path, nullptr, &model, &error))
        fail(status, error);
    return Model(model);
}

// Memory of one tensor, with the description that the runtime takes.
struct Tensor {
    std::vector<int64_t> shape;
    std::vector<unsigned char> bytes;
    dvt_dtype dtype;

    Tensor(const dvt_tensor_info *info, std::vector<int64_t> sizes)
        : shape(std::move(sizes)), bytes(count() * info->dtype.bits / 8 + 8), dtype(info->dtype)
    {
    }
    size_t count() const
    {
        return std::accumulate(shape.begin(), shape.end(), size_t{1},
                               [](size_t n, int64_t size) { return n * size_t(size); });
    }
    bool is_float() const
    {
        return dtype.code == DVT_FLOAT && dtype.bits == 32;
    }
    float *floats()
    {
        return reinterpret_cast<float *>(bytes.data());
    }
    dvt_tensor view()
    {
        return {
            bytes.data(), {DVT_CPU, 0}, int32_t(shape.size()), dtype, shape.data(), nullptr, 0};
    }
};

// The least that each dynamic size may be, in the shapes of the inputs.
void set_dynamic_sizes(const dvt_artifact *model, std::vector<std::vector<int64_t>> &shapes)
{
    for (size_t i = 0; i < dvt_symbol_count(model); i++) {
        dvt_symbol_info symbol{};
        symbol.struct_size = sizeof symbol;
        if (dvt_symbol_at(model, i, &symbol) == DVT_OK && symbol.axis >= 0)
            shapes[symbol.input][size_t(symbol.axis)] = symbol.low;
    }
}

std::vector<Tensor> make_inputs(const dvt_artifact *model)
{
    std::vector<std::vector<int64_t>> shapes;
    for (size_t i = 0; i < dvt_input_count(model); i++) {
        const dvt_tensor_info *info = dvt_input_info(model, i);
        shapes.emplace_back(info->shape, info->shape + info->ndim);
    }
    set_dynamic_sizes(model, shapes);
    std::vector<Tensor> inputs;
    for (size_t i = 0; i < shapes.size(); i++) {
        inputs.emplace_back(dvt_input_info(model, i), shapes[i]);
        for (size_t n = 0; inputs[i].is_float() && n < inputs[i].count(); n++)
            inputs[i].floats()[n] = 0.01f * float(n);
    }
    return inputs;
}

std::vector<Tensor> run(dvt_artifact *model, std::vector<Tensor> &inputs)
{
    dvt_error error{};
    std::vector<dvt_tensor> given, places;
    for (Tensor &input : inputs)
        given.push_back(input.view());
    std::vector<Tensor> results;
    for (size_t i = 0; i < dvt_output_count(model); i++) {
        const dvt_tensor_info *info = dvt_output_info(model, i);
        std::vector<int64_t> shape(size_t(info->ndim));
        if (dvt_status status = dvt_output_shape(model, given.data(), given.size(), i,
                                                 shape.data(), shape.size(), &error))
            fail(status, error);
        results.emplace_back(info, shape);
    }
    for (Tensor &result : results)
        places.push_back(result.view());
    dvt_run_options options{};
    options.struct_size = sizeof options;
    options.results = places.data();
    std::vector<dvt_managed *> made(results.size());
    if (dvt_status status = dvt_run(model, &options, given.data(), given.size(), made.data(),
                                    made.size(), &error))
        fail(status, error);
    return results;
}

} // namespace

int main(int count, char **arguments)
{
    if (count != 2) {
        std::fprintf(stderr, "usage: %s model.dvt\n", arguments[0]);
        return 2;
    }
    try {
        Model model = open(arguments[1]);
        std::vector<Tensor> inputs = make_inputs(model.get());
        std::vector<Tensor> results = run(model.get(), inputs);
        for (size_t i = 0; i < results.size(); i++) {
            std::printf("%s:", dvt_output_info(model.get(), i)->name);
            for (size_t n = 0; results[i].is_float() && n < results[i].count() && n < 8; n++)
                std::printf(" %.6f", double(results[i].floats()[n]));
            std::printf(" (%zu values)\n", results[i].count());
        }
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
