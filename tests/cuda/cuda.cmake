# backend: what the back ends do without a device (tests everywhere). cuda: the tests on a GPU, under the label `gpu`; where there
# is none they are shown as skipped, and compiled only on request (OTIMES_CUDA=ON), since that takes a minute.
find_package(Threads REQUIRED)
otimes_add_room(backend)
if(TARGET test_backend)
  target_sources(test_backend PRIVATE "${PROJECT_SOURCE_DIR}/backend/none/no_mpi.cpp")
  target_link_libraries(test_backend PRIVATE otimes_backend_core Threads::Threads)
endif()

if(OTIMES_CUDA STREQUAL "ON" OR (EXISTS /dev/nvidiactl AND TARGET otimes_core_set_builder))
  set(cuda_cases 15) # each case compiles its kernels at run time: together 16 minutes
  otimes_add_room(cuda)
  target_link_libraries(test_cuda PRIVATE otimes::cuda)
  set(parts cuda cuda.2 cuda.3 cuda.4 cuda.5 cuda.6 cuda.7 cuda.8 cuda.long)
  set_tests_properties(${parts} PROPERTIES SKIP_REGULAR_EXPRESSION "tests on a GPU are skipped" TIMEOUT 1500)
  set_property(TEST ${parts} APPEND PROPERTY LABELS gpu)
else()
  add_test(NAME cuda COMMAND "${CMAKE_COMMAND}" -E echo "tests on a GPU are skipped: there is none")
  set_tests_properties(cuda PROPERTIES SKIP_REGULAR_EXPRESSION "tests on a GPU are skipped" LABELS gpu)
endif()

if(TARGET otimes_cuda_compiler)
  if(NOT OTIMES_TEST_SOURCES_ONLY) # under sanitizers minutes of a compiler that they do not see; pretended_driver has the calls of it
    otimes_add_room(runtime_compiler)
    target_sources(test_runtime_compiler PRIVATE $<TARGET_OBJECTS:otimes_cuda_compiler>)
    target_link_libraries(test_runtime_compiler PRIVATE otimes_backend_core Threads::Threads ${CMAKE_DL_LIBS})
  endif()

  # The host's side of the back end, on a driver that is not there, and that of several GPUs. Each takes minutes to compile.
  foreach(script run several_gpus)
    string(REPLACE run driver name ${script})
    add_test(
      NAME pretended_${name}
      COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/pretended_driver/${script}.sh" "${PROJECT_SOURCE_DIR}" "${CMAKE_COMMAND}" "${CMAKE_CXX_COMPILER}"
              ${OTIMES_COMPILE_FLAGS} "-I$<JOIN:$<TARGET_PROPERTY:otimes_cuda_compiler,INCLUDE_DIRECTORIES>,;-I>"
      COMMAND_EXPAND_LISTS)
    set_tests_properties(pretended_${name} PROPERTIES LABELS long TIMEOUT 1500)
  endforeach()
endif()

# A program that is linked with otimes::cuda starts where there is no GPU and is told so: with the stub, which compiles anywhere.
# And what the front end asks of a device, by one whose memory is the host's.
add_library(otimes_test_no_cuda STATIC EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/backend/none/no_cuda.cpp"
                                       "${PROJECT_SOURCE_DIR}/backend/make_executor.cpp")
target_link_libraries(otimes_test_no_cuda PUBLIC otimes::otimes Threads::Threads) # it asks the planner what the compiled one keeps to itself
target_compile_options(otimes_test_no_cuda PRIVATE ${OTIMES_TEST_FRONT_FLAGS})
set(sources no_cuda/no_cuda.cpp no_cuda/host_device.cpp no_cuda/device_forms.cpp no_cuda/executors.cpp
            no_cuda/small_sizes.cpp)
add_executable(test_no_cuda ${sources})
target_link_libraries(test_no_cuda PRIVATE otimes_test_no_cuda otimes_backend_core otimes_test_support)
if(TARGET otimes_test_compiled)
  target_link_libraries(test_no_cuda PRIVATE otimes_test_decompositions otimes_test_compiled)
endif()
target_compile_options(test_no_cuda PRIVATE ${OTIMES_TEST_FRONT_FLAGS})
if(once)
  target_compile_definitions(test_no_cuda PRIVATE OTIMES_TEST_ONCE)
endif()
otimes_compile_together(no_cuda memory device_forms host_device no_cuda executors)
otimes_warnings(test_no_cuda)
otimes_register_room(test_no_cuda no_cuda ${sources})
if(TARGET test_adapt)
  target_link_libraries(test_adapt PRIVATE otimes_test_no_cuda)
endif()

# A machine without a toolkit, as the configuration sees it.
if(NOT OTIMES_TEST_SOURCES_ONLY)
  list(GET OTIMES_EIGEN_INCLUDE_DIRS 0 eigen_folder)
  add_test(
    NAME cuda_hidden
    COMMAND
      "${CMAKE_COMMAND}" -D "source=${PROJECT_SOURCE_DIR}" -D "folder=${CMAKE_CURRENT_BINARY_DIR}/cuda_hidden" -D
      "compiler=${CMAKE_CXX_COMPILER}" -D "generator=${CMAKE_GENERATOR}" -D "eigen_folder=${eigen_folder}" -P
      "${CMAKE_CURRENT_SOURCE_DIR}/cuda/hidden.cmake")
  set_tests_properties(cuda_hidden PROPERTIES TIMEOUT ${OTIMES_TEST_TIMEOUT})
endif()
