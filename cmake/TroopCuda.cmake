# With TROOP_CUDA: the one translation unit that nvcc compiles becomes libtroop_cuda, which troop::cuda links.
if(NOT TARGET troop::cuda)
  message(FATAL_ERROR "TROOP_CUDA=ON: ${troop_cuda_missing}. Configure with -DTROOP_CUDA=OFF to do without.")
endif()

find_package(CUDAToolkit 12.4 REQUIRED QUIET)  # its variables; FindTroopCuda's are those of a function

# What the toolkit compiles for. A number alone stands for machine code and PTX, from which the driver of a later GPU
# compiles its own. One architecture, TROOP_CUDA_ARCHITECTURES=90, takes a sixth of the time.
set(architectures 75-real 80-real 86-real 89-real 90)
if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
  set(architectures 75-real 80-real 86-real 89-real 90-real 100)
endif()
set(TROOP_CUDA_ARCHITECTURES "${architectures}" CACHE STRING "GPU architectures that troop::cuda is compiled for")
set(CMAKE_CUDA_ARCHITECTURES "${TROOP_CUDA_ARCHITECTURES}")
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")  # that of the toolkit found, in PATH or not
endif()
enable_language(CUDA)

add_library(troop_cuda_backend STATIC include/troop/cuda/backend.cu)
target_link_libraries(troop_cuda_backend PRIVATE troop::nn TroopCuda::TroopCuda)
target_compile_definitions(troop_cuda_backend PRIVATE TROOP_WITH_CUDA)
# CMake before 3.26 does not know this standard for nvcc.
target_compile_options(troop_cuda_backend PRIVATE
  -std=c++20 -Xptxas=-warn-spills -Xcompiler=-Wall,-Wextra,-Wshadow,-Wconversion
  $<$<BOOL:${TROOP_WERROR}>:-Werror=all-warnings>)
set_target_properties(troop_cuda_backend PROPERTIES
  OUTPUT_NAME troop_cuda EXPORT_NAME cuda_backend LINKER_LANGUAGE CXX POSITION_INDEPENDENT_CODE ON)
target_compile_definitions(troop_cuda INTERFACE TROOP_WITH_CUDA)
target_link_libraries(troop_cuda INTERFACE troop_cuda_backend)
add_dependencies(troop_libraries troop_cuda_backend)
