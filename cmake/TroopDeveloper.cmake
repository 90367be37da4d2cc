# What troop's own programs are compiled with, and with which warnings its libraries are. Nobody who uses these inherits
# any of it: programs link troop_developer privately and the target is not exported.
include(CheckCXXCompilerFlag)

if(PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(TROOP_CCACHE ccache)
  mark_as_advanced(TROOP_CCACHE)
  if(TROOP_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${TROOP_CCACHE}")
  endif()
endif()
set(CMAKE_CXX_EXTENSIONS OFF)

set(troop_warnings
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wcast-align -Wcast-qual -Wextra-semi -Wformat=2
  -Wnon-virtual-dtor -Wold-style-cast -Woverloaded-virtual -Wundef -Wunused
  # Clang counts this one into -Wconversion, GCC does not; sizes and Eigen's signed indices meet too often.
  $<$<CXX_COMPILER_ID:Clang,AppleClang>:-Wno-sign-conversion>
  $<$<CXX_COMPILER_ID:GNU>:-Wduplicated-branches;-Wduplicated-cond;-Wlogical-op>
  # GCC 12 takes the deliberately undefined operands in its own AVX-512 intrinsics for mistakes (GCC bug 105593), and
  # with AddressSanitizer the aligned_alloc within Boost.Asio's operator new for what a coroutine allocates.
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-maybe-uninitialized;-Wno-uninitialized;-Wno-mismatched-new-delete>
  $<$<BOOL:${TROOP_WERROR}>:-Werror>)

add_library(troop_developer INTERFACE)
target_compile_options(troop_developer INTERFACE ${troop_warnings})

if(TROOP_NATIVE)
  check_cxx_compiler_flag(-march=native TROOP_HAS_MARCH_NATIVE)
  if(TROOP_HAS_MARCH_NATIVE)
    target_compile_options(troop_developer INTERFACE -march=native)
  endif()
endif()
