# Finds Eigen for otimes and for the programs that use an installed otimes (this file is installed as well).
#
# OTIMES_EIGEN_DIR chooses an Eigen: a folder that holds Eigen/Core, or one that holds Eigen3Config.cmake.
# Eigen's own package refuses 5.x when 3.4 is asked for, so the version is read from its headers and compared here.

set(OTIMES_EIGEN_DIR "" CACHE PATH "Eigen to use: an include folder (with Eigen/Core) or a package folder; empty: search")

# Writes the folders that Eigen3::Eigen adds to the include path.
function(otimes_eigen_include_dirs result)
  get_target_property(folders Eigen3::Eigen INTERFACE_INCLUDE_DIRECTORIES)
  string(REGEX REPLACE "\\$<BUILD_INTERFACE:([^>]*)>" "\\1" folders "${folders}")
  string(REGEX REPLACE "\\$<INSTALL_INTERFACE:[^>]*>" "" folders "${folders}")
  list(REMOVE_ITEM folders "")
  set(${result} "${folders}" PARENT_SCOPE)
endfunction()

# Writes the version as users name it (3.4.0, 5.0.1), or nothing when the headers do not tell.
function(otimes_eigen_version folder result)
  set(world "")
  foreach(file IN ITEMS Eigen/Version Eigen/src/Core/util/Macros.h)
    if(EXISTS "${folder}/${file}")
      file(STRINGS "${folder}/${file}" lines REGEX "#define[ \t]+EIGEN_(WORLD|MAJOR|MINOR|PATCH)_VERSION[ \t]+[0-9]+")
      foreach(line IN LISTS lines)
        if(line MATCHES "EIGEN_(WORLD|MAJOR|MINOR|PATCH)_VERSION[ \t]+([0-9]+)")
          string(TOLOWER "${CMAKE_MATCH_1}" part)
          set(${part} "${CMAKE_MATCH_2}")
        endif()
      endforeach()
    endif()
  endforeach()
  if(world STREQUAL "")
    set(${result} "" PARENT_SCOPE)
  elseif(major GREATER_EQUAL 5) # from 5.0 on the first number of the name is EIGEN_MAJOR_VERSION
    set(${result} "${major}.${minor}.${patch}" PARENT_SCOPE)
  else()
    set(${result} "${world}.${major}.${minor}" PARENT_SCOPE)
  endif()
endfunction()

# Makes sure that the target Eigen3::Eigen exists and is at least 3.4. Sets OTIMES_EIGEN_INCLUDE_DIRS and OTIMES_EIGEN_VERSION.
macro(otimes_find_eigen)
  if(NOT TARGET Eigen3::Eigen AND OTIMES_EIGEN_DIR AND EXISTS "${OTIMES_EIGEN_DIR}/Eigen/Core")
    add_library(Eigen3::Eigen INTERFACE IMPORTED GLOBAL)
    set_target_properties(Eigen3::Eigen PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${OTIMES_EIGEN_DIR}")
  elseif(NOT TARGET Eigen3::Eigen AND OTIMES_EIGEN_DIR)
    find_package(Eigen3 CONFIG QUIET PATHS "${OTIMES_EIGEN_DIR}" NO_DEFAULT_PATH)
    if(NOT TARGET Eigen3::Eigen)
      message(FATAL_ERROR "otimes: OTIMES_EIGEN_DIR is ${OTIMES_EIGEN_DIR}, which holds neither Eigen/Core nor Eigen3Config.cmake.")
    endif()
  elseif(NOT TARGET Eigen3::Eigen)
    find_package(Eigen3 CONFIG QUIET)
    if(NOT TARGET Eigen3::Eigen)
      message(FATAL_ERROR "otimes needs Eigen 3.4 or newer and did not find it. Install it (Debian and Ubuntu: "
                          "apt-get install libeigen3-dev) or set OTIMES_EIGEN_DIR to a folder that holds Eigen/Core.")
    endif()
  endif()
  otimes_check_eigen()
endmacro()

# Checks the version of the target Eigen3::Eigen.
macro(otimes_check_eigen)
  otimes_eigen_include_dirs(OTIMES_EIGEN_INCLUDE_DIRS)
  set(OTIMES_EIGEN_VERSION "")
  foreach(otimes_eigen_folder IN LISTS OTIMES_EIGEN_INCLUDE_DIRS)
    if(NOT OTIMES_EIGEN_VERSION)
      otimes_eigen_version("${otimes_eigen_folder}" OTIMES_EIGEN_VERSION)
    endif()
  endforeach()
  if(NOT OTIMES_EIGEN_VERSION)
    message(WARNING "otimes: could not read the version of Eigen in '${OTIMES_EIGEN_INCLUDE_DIRS}'; 3.4 or newer is needed.")
  elseif(OTIMES_EIGEN_VERSION VERSION_LESS 3.4)
    message(FATAL_ERROR "otimes needs Eigen 3.4 or newer; '${OTIMES_EIGEN_INCLUDE_DIRS}' holds ${OTIMES_EIGEN_VERSION}.")
  endif()
endmacro()
