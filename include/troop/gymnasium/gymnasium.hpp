/// @file
/// Any Gymnasium environment, by its id, with Python inside this process.
#pragma once

#include <troop/gymnasium/detail/python.hpp>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <troop/core/dtype.hpp>
#include <troop/core/error.hpp>
#include <troop/env/environment.hpp>

namespace troop::env {

/// A value that is passed to Python by name.
using Keyword = std::variant<bool, std::int64_t, double, std::string>;

/// Which environment `gymnasium.make` makes.
struct GymnasiumOptions {
  std::string id = {};                           ///< "LunarLander-v3", "ALE/Pong-v5", "my_module:MyTask-v0"
  std::map<std::string, Keyword> keywords = {};  ///< further arguments: {{"gravity", -5.0}}

  void validate() const { require(!id.empty(), "id", "\"\"", "the id of a Gymnasium environment"); }
};

namespace detail {

inline pybind11::dict to_python(const std::map<std::string, Keyword>& keywords) {
  pybind11::dict result;
  for (const auto& [name, keyword] : keywords)
    result[name.c_str()] = std::visit([](const auto& value) { return pybind11::cast(value); }, keyword);
  return result;
}

}  // namespace detail

/// One environment of Python's Gymnasium.
///
/// The observation space must be a Box of any shape: uint8 for `Gymnasium<std::uint8_t>`, float32 or float64,
/// which is rounded, for `Gymnasium<float>`. The action space must be Discrete. Anything else is refused by
/// name. Name, limit of steps and the return that counts as solved are those of Gymnasium's registry. A user's
/// own environment needs a registered id; `module:id` imports the module first, and PYTHONPATH says where it
/// is.
///
/// The Python that is used: the interpreter named by the environment variable TROOP_PYTHON, an activated
/// virtual environment, that of `make atari-deps` for programs built with troop, else the system's; it must
/// be of the version that the program is linked with. A program that has started an interpreter itself keeps
/// it. There is one a process, which is never ended; its signal handlers are not installed.
///
/// An Environment, seeded with 31 bits of the seed. Python's lock is held during the calls and at no other
/// time, so that environments in several threads take turns: for more speed than one Python has, start more
/// processes. What Python raises is an Error with Python's type, message, file and line; VectorEnvironment
/// puts environment and step in front of it. So are observations of a wrong shape or type. A missing package
/// is an Error with the `pip install` line. Not thread-safe: one thread at a time, which may change.
///
///     auto make = [](std::uint64_t) { return Gymnasium<float>({.id = "LunarLander-v3"}); };
///     VectorEnvironment<Gymnasium<float>> environments({.count = 8, .seed = 1}, make);
///     environments.step(actions);
template <ObservationScalar S>
class Gymnasium {
 public:
  using Scalar = S;

  /// Makes the environment. Throws InvalidArgument for spaces that are not supported, Error for what Python
  /// raises (an unknown id, with near ones) and for missing packages.
  explicit Gymnasium(const GymnasiumOptions& options) {
    options.validate();
    detail::ensure_python();
    detail::with_python([&] {
      const pybind11::module_ gymnasium = detail::import_package("gymnasium", detail::kGymnasiumPackage);
      if (options.id.starts_with("ALE/")) detail::import_package("ale_py", detail::kAlePackage);
      pybind11::object made = gymnasium.attr("make")(options.id, **detail::to_python(options.keywords));
      describe(gymnasium, made, options.id);
      step_ = detail::PythonObject(made.attr("step"));
      reset_ = detail::PythonObject(made.attr("reset"));
      as_array_ = detail::PythonObject(pybind11::module_::import("numpy").attr("ascontiguousarray"));
      environment_ = detail::PythonObject(std::move(made));
    });
  }

  Gymnasium(Gymnasium&&) = default;
  Gymnasium& operator=(Gymnasium&&) = default;

  /// Closes Python's environment; what it raises by that is lost.
  ~Gymnasium() {
    if (!environment_ || !Py_IsInitialized()) return;
    try {
      detail::with_python([&] { environment_.get().attr("close")(); });
    } catch (const Error&) {
    }
  }

  const Spec& spec() const noexcept { return spec_; }

  void reset(std::uint64_t seed, std::span<S> observation) {
    detail::with_python([&] {
      const pybind11::object result = reset_.get()(pybind11::arg("seed") = seed & 0x7fffffffu);
      copy(item(result, 0, 2, "reset"), observation);
    });
  }

  StepResult step(std::int32_t action, std::span<S> observation) {
    require_action(action, spec_.num_actions);
    return detail::with_python([&] {
      const pybind11::object result = step_.get()(first_action_ + action);
      copy(item(result, 0, 5, "step"), observation);
      return StepResult{.reward = static_cast<float>(number(item(result, 1, 5, "step"))),
                        .terminated = truth(item(result, 2, 5, "step")),
                        .truncated = truth(item(result, 3, 5, "step"))};
    });
  }

 private:
  static constexpr bool kBytes = sizeof(S) == 1;
  static constexpr const char* kDtype = kBytes ? "uint8" : "float32";
  static constexpr std::string_view kFormat = kBytes ? "B" : "f";  // of a Python buffer

  /// Element k of the tuple of `size` that `call` returned.
  static pybind11::handle item(const pybind11::object& tuple, Py_ssize_t k, Py_ssize_t size,
                               const char* call) {
    const bool is_tuple = PyTuple_Check(tuple.ptr());
    if (!is_tuple || PyTuple_GET_SIZE(tuple.ptr()) != size)
      throw InvalidArgument(std::string(call) + "() returned",
                            is_tuple ? "a tuple of " + std::to_string(PyTuple_GET_SIZE(tuple.ptr()))
                                     : std::string(pybind11::str(pybind11::type::of(tuple))),
                            "a tuple of " + std::to_string(size));
    return PyTuple_GET_ITEM(tuple.ptr(), k);
  }

  static double number(pybind11::handle object) {
    const double value = PyFloat_AsDouble(object.ptr());
    if (value == -1.0 && PyErr_Occurred() != nullptr) throw pybind11::error_already_set();
    return value;
  }

  static bool truth(pybind11::handle object) {
    const int value = PyObject_IsTrue(object.ptr());
    if (value < 0) throw pybind11::error_already_set();
    return value == 1;
  }

  void describe(const pybind11::module_& gymnasium, const pybind11::object& made, const std::string& id) {
    namespace py = pybind11;
    const py::object spaces = gymnasium.attr("spaces");
    const py::object observations = made.attr("observation_space"), actions = made.attr("action_space");
    require(py::isinstance(observations, spaces.attr("Box")), id + ": observation space",
            std::string(py::str(observations)), "a Box");
    const std::string dtype = py::str(observations.attr("dtype"));
    const bool bytes = dtype == "uint8", floats = dtype == "float32" || dtype == "float64";
    require(bytes || floats, id + ": observation space", std::string(py::str(observations)),
            "a Box of uint8, float32 or float64");
    require(bytes == kBytes, id + ": observations of " + dtype,
            std::string("Gymnasium<") + (kBytes ? "std::uint8_t>" : "float>"),
            bytes ? "Gymnasium<std::uint8_t>" : "Gymnasium<float>");
    require(py::isinstance(actions, spaces.attr("Discrete")), id + ": action space",
            std::string(py::str(actions)), "Discrete");
    for (const py::handle dimension : observations.attr("shape"))
      shape_.push_back(dimension.cast<Py_ssize_t>());

    spec_.name = id;
    spec_.observation_dtype = dtype_of<S>();
    if (shape_.empty()) shape_ = {1};  // a single number
    for (const Py_ssize_t dimension : shape_)
      spec_.observation_shape.push_back(static_cast<std::size_t>(dimension));
    spec_.num_actions = actions.attr("n").cast<std::int32_t>();
    first_action_ = actions.attr("start").cast<std::int32_t>();
    const py::object registered = made.attr("spec");
    if (!registered.is_none()) {
      const py::object limit = registered.attr("max_episode_steps");
      const py::object threshold = registered.attr("reward_threshold");
      if (!limit.is_none()) spec_.max_episode_steps = limit.cast<std::uint64_t>();
      if (!threshold.is_none()) spec_.return_to_solve = threshold.cast<double>();
    }
    spec_.validate();
  }

  /// Copies what Python observed. Arrays of the space's own dtype are copied as they are; other numbers, lists
  /// and single numbers are converted by numpy, to float32 only.
  void copy(pybind11::handle observed, std::span<S> observation) const {
    assert(observation.size() == spec_.observation_size());
    namespace py = pybind11;
    py::object array = as_array_.get()(observed);
    if (detail::PythonBuffer(array).format() != kFormat) {
      const std::string kind = py::str(array.attr("dtype").attr("kind"));
      require(!kBytes && (kind == "f" || kind == "i" || kind == "u" || kind == "b"), "observation of dtype",
              std::string(py::str(array.attr("dtype"))), kDtype);
      array = as_array_.get()(array, kDtype);
    }
    const detail::PythonBuffer buffer(array);
    if (!std::ranges::equal(buffer.shape(), shape_)) refuse_shape(buffer.shape());
    std::memcpy(observation.data(), buffer.data(), observation.size_bytes());
  }

  [[noreturn]] void refuse_shape(std::span<const Py_ssize_t> shape) const {
    const auto text = [](std::span<const Py_ssize_t> dimensions) {
      std::string result = "[";
      for (const Py_ssize_t dimension : dimensions)
        result += (result.size() > 1 ? "," : "") + std::to_string(dimension);
      return result + "]";
    };
    throw InvalidArgument("observation of shape", text(shape), text(shape_));
  }

  detail::PythonObject environment_, step_, reset_, as_array_;
  Spec spec_;
  std::vector<Py_ssize_t> shape_;
  std::int32_t first_action_ = 0;
};

}  // namespace troop::env
