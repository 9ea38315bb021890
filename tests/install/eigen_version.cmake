# The version of Eigen is read rightly from the headers of its releases, whose numbering changed with 5.0.
include("${module}")

function(expect version file text)
  file(REMOVE_RECURSE "${folder}")
  file(WRITE "${folder}/${file}" "${text}")
  otimes_eigen_version("${folder}" found)
  if(NOT found STREQUAL version)
    message(FATAL_ERROR "expected version '${version}', found '${found}' in ${file}:\n${text}")
  endif()
endfunction()

set(macros Eigen/src/Core/util/Macros.h)
expect(3.3.9 ${macros}
       "#define EIGEN_WORLD_VERSION 3\n#define EIGEN_MAJOR_VERSION 3\n#define EIGEN_MINOR_VERSION 9\n")
expect(3.4.0 ${macros}
       "#define EIGEN_WORLD_VERSION 3\n#define EIGEN_MAJOR_VERSION 4\n#define EIGEN_MINOR_VERSION 0\n")
expect(5.0.1 Eigen/Version
       "#define EIGEN_WORLD_VERSION 3\n#define EIGEN_MAJOR_VERSION 5\n#define EIGEN_MINOR_VERSION 0\n#define EIGEN_PATCH_VERSION 1\n")
expect("" Eigen/Core "nothing\n")

# The check itself: an old Eigen stops the configuration with a sentence that says what to do.
foreach(case IN ITEMS "3;refused" "4;accepted")
  list(GET case 0 major)
  list(GET case 1 wanted)
  file(REMOVE_RECURSE "${folder}")
  file(WRITE "${folder}/eigen/Eigen/Core" "")
  file(WRITE "${folder}/eigen/${macros}"
       "#define EIGEN_WORLD_VERSION 3\n#define EIGEN_MAJOR_VERSION ${major}\n#define EIGEN_MINOR_VERSION 0\n")
  file(WRITE "${folder}/CMakeLists.txt"
       "cmake_minimum_required(VERSION 3.25)\nproject(check LANGUAGES NONE)\ninclude(\"${module}\")\notimes_find_eigen()\n")
  execute_process(COMMAND "${CMAKE_COMMAND}" -G "${generator}" -S "${folder}" -B "${folder}/build" -D
                          "OTIMES_EIGEN_DIR=${folder}/eigen"
                  RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(wanted STREQUAL "accepted" AND NOT code EQUAL 0)
    message(FATAL_ERROR "Eigen 3.${major} must be accepted:\n${output}")
  elseif(wanted STREQUAL "refused" AND (code EQUAL 0 OR NOT output MATCHES "needs Eigen 3.4 or newer"))
    message(FATAL_ERROR "Eigen 3.${major} must be refused, with a sentence:\n${output}")
  endif()
endforeach()
