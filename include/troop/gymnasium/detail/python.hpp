/// @file
/// The Python inside: one interpreter a process, the lock, objects that outlive a call, errors as troop::Error.
#pragma once

// Python asks to be included first.
#include <Python.h>
#include <pybind11/pybind11.h>

#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <troop/core/error.hpp>

namespace troop::env::detail {

/// The packages as `pip install` takes them: the versions with which this was tested.
inline constexpr const char* kGymnasiumPackage = "gymnasium==1.4.0";
inline constexpr const char* kAlePackage = "ale-py==0.12.1";

/// Where the interpreter is looked for, and who says so.
struct PythonPlace {
  std::string executable;  ///< empty: Python's own search
  std::string said_by;     ///< "TROOP_PYTHON"; empty for a place that need not be there
};

/// TROOP_PYTHON, then an activated virtual environment, then the one of this build, then Python's own search.
inline PythonPlace python_place() {
  if (const char* const path = std::getenv("TROOP_PYTHON"); path != nullptr && *path != '\0')
    return {path, "TROOP_PYTHON"};
  if (const char* const folder = std::getenv("VIRTUAL_ENV"); folder != nullptr && *folder != '\0')
    return {std::string(folder) + "/bin/python", "VIRTUAL_ENV"};
#ifdef TROOP_BUILD_PYTHON
  if (std::error_code ignored; std::filesystem::exists(TROOP_BUILD_PYTHON, ignored))
    return {TROOP_BUILD_PYTHON, ""};
#endif
  return {};
}

/// The version of Python that this program is linked with: "3.11".
inline std::string linked_python() {
  return std::to_string(PY_MAJOR_VERSION) + "." + std::to_string(PY_MINOR_VERSION);
}

/// Throws InvalidArgument unless there is an interpreter of the linked version. The version of a virtual
/// environment stands in its pyvenv.cfg; of other interpreters it is not looked at.
inline void require_python(const PythonPlace& place) {
  std::error_code ignored;
  require(std::filesystem::exists(place.executable, ignored), place.said_by, place.executable,
          "a Python interpreter of version " + linked_python());
  const auto folder = std::filesystem::path(place.executable).parent_path().parent_path();
  std::ifstream settings(folder / "pyvenv.cfg");
  for (std::string line; std::getline(settings, line);) {
    if (!line.starts_with("version")) continue;
    const std::string version = line.substr(line.find_last_of(" =") + 1);
    require(version.starts_with(linked_python() + "."), place.said_by.empty() ? "Python" : place.said_by,
            place.executable + " of version " + version,
            "version " + linked_python() + ", with which this program was built");
  }
}

/// Starts Python. Signals stay the program's, output is not kept back, and the interpreter is never ended:
/// threads may still be in it, and numpy cannot be loaded twice. What an environment has to finish it
/// finishes when it is closed.
inline void start_python() {
  const PythonPlace place = python_place();
  if (!place.executable.empty()) require_python(place);
  PyConfig config;
  PyConfig_InitPythonConfig(&config);
  config.parse_argv = 0;
  config.install_signal_handlers = 0;
  config.buffered_stdio = 0;
  PyStatus status = PyStatus_Ok();
  if (!place.executable.empty())
    status = PyConfig_SetBytesString(&config, &config.program_name, place.executable.c_str());
  if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
  PyConfig_Clear(&config);
  if (PyStatus_Exception(status))
    throw Error("Python does not start" + (place.executable.empty() ? "" : " as " + place.executable) + ": " +
                (status.err_msg != nullptr ? status.err_msg : "unknown error"));
  // Python's module signal takes SIGINT for itself when it is first imported, whoever does so.
  struct sigaction interrupt {};
  sigaction(SIGINT, nullptr, &interrupt);
  Py_XDECREF(PyImport_ImportModule("signal"));
  sigaction(SIGINT, &interrupt, nullptr);
  PyErr_Clear();
  PyEval_SaveThread();  // gives the lock back
}

/// Makes sure that there is an interpreter: the program's own one if it has started one, else ours. The first
/// caller starts it; a start that failed is tried again.
inline void ensure_python() {
  static const bool started = [] {
    if (!Py_IsInitialized()) start_python();
    return true;
  }();
  static_cast<void>(started);
}

/// Holds Python's global lock, also where the thread holds it already.
class PythonLock {
 public:
  PythonLock() : state_(PyGILState_Ensure()) {}
  ~PythonLock() { PyGILState_Release(state_); }
  PythonLock(const PythonLock&) = delete;
  PythonLock& operator=(const PythonLock&) = delete;

 private:
  PyGILState_STATE state_;
};

/// Owns a Python object and may be destroyed without the lock, or after the interpreter.
class PythonObject {
 public:
  PythonObject() = default;
  explicit PythonObject(pybind11::object object) : pointer_(object.release().ptr()) {}
  PythonObject(PythonObject&& other) noexcept : pointer_(std::exchange(other.pointer_, nullptr)) {}
  PythonObject& operator=(PythonObject&& other) noexcept {
    std::swap(pointer_, other.pointer_);
    return *this;
  }
  ~PythonObject() {
    if (pointer_ == nullptr || !Py_IsInitialized()) return;
    const PythonLock lock;
    Py_DECREF(pointer_);
  }

  explicit operator bool() const noexcept { return pointer_ != nullptr; }
  pybind11::handle get() const noexcept { return pointer_; }

 private:
  PyObject* pointer_ = nullptr;
};

/// The memory of an array, lent for the time of a scope. With the lock held.
class PythonBuffer {
 public:
  explicit PythonBuffer(pybind11::handle array) {
    if (PyObject_GetBuffer(array.ptr(), &buffer_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0)
      throw pybind11::error_already_set();
  }
  ~PythonBuffer() { PyBuffer_Release(&buffer_); }
  PythonBuffer(const PythonBuffer&) = delete;
  PythonBuffer& operator=(const PythonBuffer&) = delete;

  std::string_view format() const noexcept { return buffer_.format != nullptr ? buffer_.format : "B"; }
  std::span<const Py_ssize_t> shape() const noexcept {
    return {buffer_.shape, static_cast<std::size_t>(buffer_.ndim)};
  }
  const void* data() const noexcept { return buffer_.buf; }
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(buffer_.len); }

 private:
  Py_buffer buffer_{};
};

/// "ValueError: the message (my_task.py:12 in step)" in one line.
inline std::string message_of(pybind11::error_already_set& error) {
  namespace py = pybind11;
  const auto text_of = [](py::handle object) -> std::string {
    PyObject* const text = object ? PyObject_Str(object.ptr()) : nullptr;
    const char* const bytes = text != nullptr ? PyUnicode_AsUTF8(text) : nullptr;
    std::string result = bytes != nullptr ? bytes : "";
    Py_XDECREF(text);
    PyErr_Clear();
    return result;
  };
  std::string message = text_of(py::getattr(error.type(), "__name__", py::none()));
  const std::string value = text_of(error.value());
  if (!value.empty()) message += ": " + value;
  for (char& letter : message) {
    if (letter == '\n' || letter == '\r') letter = ' ';
  }
  py::object trace = error.trace() ? error.trace() : py::none();
  if (trace.is_none()) return message;
  while (!trace.attr("tb_next").is_none()) trace = trace.attr("tb_next");
  const py::object code = trace.attr("tb_frame").attr("f_code");
  const std::filesystem::path file = text_of(code.attr("co_filename"));
  return message + " (" + file.filename().string() + ":" + text_of(trace.attr("tb_lineno")) + " in " +
         text_of(code.attr("co_name")) + ")";
}

/// Calls `f` with the lock held. What Python raises becomes an Error with Python's message.
template <class F>
auto with_python(F&& f) {
  const PythonLock lock;
  try {
    return f();
  } catch (pybind11::error_already_set& error) {
    throw Error(message_of(error));
  } catch (const pybind11::builtin_exception& error) {  // a value of another type than was expected
    throw Error(error.what());
  }
}

/// Imports `module`; a package that is not there is an Error that says how to install it. What lacks a part of
/// Python itself is told apart: its interpreter and the library in this program do not belong together (of 3.9
/// nothing says which modules are Python's). With the lock held.
inline pybind11::module_ import_package(const char* module, const char* package) {
  namespace py = pybind11;
  try {
    return py::module_::import(module);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_ModuleNotFoundError)) throw;
    const py::module_ sys = py::module_::import("sys");
    const std::string executable = py::str(sys.attr("executable"));
    if (py::hasattr(sys, "stdlib_module_names") &&
        sys.attr("stdlib_module_names").contains(error.value().attr("name")))
      throw Error(message_of(error) + "; " + executable +
                  " is of another build of Python than the one that this program is linked with");
    const std::string python = executable.empty() ? "python" + linked_python() : executable;
    throw Error(message_of(error) + "; install it: " + python + " -m pip install " + package +
                " (or name a Python " + linked_python() + " that has it in TROOP_PYTHON)");
  }
}

}  // namespace troop::env::detail
