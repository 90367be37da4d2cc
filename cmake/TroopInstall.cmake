# Headers, libraries and package files, all in the install component `devel`. Every path in the package is relative
# to it: the installed tree may be moved.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir "${CMAKE_INSTALL_DATADIR}/cmake/troop")
set(processors ARCH_INDEPENDENT)
foreach(component IN LISTS troop_components)
  if(TARGET troop_${component})
    get_target_property(kind troop_${component} TYPE)
    if(kind STREQUAL "STATIC_LIBRARY")
      set(processors "")
    endif()
    install(TARGETS troop_${component} EXPORT troop-${component}
            ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT devel
            FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT devel)
    install(EXPORT troop-${component} NAMESPACE troop:: FILE troop-${component}.cmake
            DESTINATION "${package_dir}" COMPONENT devel)
  endif()
endforeach()

configure_package_config_file(cmake/troopConfig.cmake.in "${PROJECT_BINARY_DIR}/troopConfig.cmake"
  INSTALL_DESTINATION "${package_dir}" NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
if(TROOP_CUDA)
  set(processors "")
  install(TARGETS troop_cuda_backend EXPORT troop-cuda COMPONENT devel)
endif()
write_basic_package_version_file("${PROJECT_BINARY_DIR}/troopConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion ${processors})
install(FILES "${PROJECT_BINARY_DIR}/troopConfig.cmake" "${PROJECT_BINARY_DIR}/troopConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/troopComponents.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/FindTroopCompression.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/FindTroopCuda.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/FindTroopMonitor.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/FindTroopNetwork.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/FindTroopProgram.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/FindTroopPython.cmake"
        DESTINATION "${package_dir}" COMPONENT devel)
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT devel)
