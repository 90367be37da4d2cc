# The libraries of troop::cuda with TROOP_CUDA: CUDA's runtime and cuBLASLt, and cuDNN. Defines TroopCuda::TroopCuda.
include(FindPackageHandleStandardArgs)

find_package(CUDAToolkit 12.4 QUIET)
find_path(TroopCuda_CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
find_library(TroopCuda_CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
mark_as_advanced(TroopCuda_CUDNN_INCLUDE_DIR TroopCuda_CUDNN_LIBRARY)

set(TroopCuda_TOOLKIT "${CUDAToolkit_VERSION}")
set(TroopCuda_CUBLASLT "")
if(TARGET CUDA::cublasLt)
  set(TroopCuda_CUBLASLT "CUDA::cublasLt")
endif()
set(TroopCuda_CUDNN_VERSION "")
if(TroopCuda_CUDNN_INCLUDE_DIR)
  file(STRINGS "${TroopCuda_CUDNN_INCLUDE_DIR}/cudnn_version.h" TroopCuda_CUDNN_VERSION REGEX "#define CUDNN_MAJOR 9$")
endif()
find_package_handle_standard_args(TroopCuda REQUIRED_VARS
  TroopCuda_TOOLKIT TroopCuda_CUBLASLT TroopCuda_CUDNN_LIBRARY TroopCuda_CUDNN_INCLUDE_DIR TroopCuda_CUDNN_VERSION)

if(TroopCuda_FOUND AND NOT TARGET TroopCuda::TroopCuda)
  add_library(TroopCuda::TroopCuda INTERFACE IMPORTED)
  target_include_directories(TroopCuda::TroopCuda SYSTEM INTERFACE "${TroopCuda_CUDNN_INCLUDE_DIR}")
  target_link_libraries(TroopCuda::TroopCuda INTERFACE
    CUDA::cudart_static CUDA::cublasLt "${TroopCuda_CUDNN_LIBRARY}")
endif()
