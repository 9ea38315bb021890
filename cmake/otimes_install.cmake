# cmake --install: the headers and the package that find_package(otimes) finds.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(OTIMES_PACKAGE_DIR "${CMAKE_INSTALL_DATADIR}/cmake/otimes")

target_include_directories(otimes INTERFACE "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
install(TARGETS otimes EXPORT otimes_targets)
if(OTIMES_COMPILED)
  install(TARGETS otimes_compiled EXPORT otimes_targets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
if(OTIMES_INSTALLED_BACKENDS)
  install(TARGETS ${OTIMES_INSTALLED_BACKENDS} EXPORT otimes_targets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
          INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
endif()
install(
  EXPORT otimes_targets
  NAMESPACE otimes::
  FILE otimes-targets.cmake
  DESTINATION "${OTIMES_PACKAGE_DIR}")
install(
  DIRECTORY "${PROJECT_SOURCE_DIR}/include/otimes"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING
  PATTERN "*.hpp")

# What otimes-config.cmake must know of this build.
set(otimes_package_backends OFF)
set(otimes_package_cuda OFF)
set(otimes_package_mpi OFF)
if(OTIMES_INSTALLED_BACKENDS)
  set(otimes_package_backends ON)
  set(otimes_package_cuda ${OTIMES_CUDA_FOUND})
  set(otimes_package_mpi ${OTIMES_MPI_FOUND})
endif()
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/otimes-config.cmake.in" "${PROJECT_BINARY_DIR}/otimes-config.cmake"
  INSTALL_DESTINATION "${OTIMES_PACKAGE_DIR}"
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/otimes-config-version.cmake" COMPATIBILITY SameMinorVersion
                                 ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/otimes-config.cmake" "${PROJECT_BINARY_DIR}/otimes-config-version.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/otimes_eigen.cmake" DESTINATION "${OTIMES_PACKAGE_DIR}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
