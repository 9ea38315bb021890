# distributed: one executable. Run alone, its cases take ranks inside the process; under mpirun the same cases are those ranks
# (label `mpi`). Where MPI is not found, that is shown as skipped.
otimes_add_room(distributed FRONT)
if(once)
  target_compile_definitions(test_distributed PRIVATE OTIMES_TEST_ONCE)
endif()
otimes_compile_together(distributed limits edges failures movement stores)
otimes_compile_together(distributed products laws left_products products)
# optimised: it runs seven times, six of them by as many ranks as share the processors
if(OTIMES_CUDA STREQUAL "ON" OR (EXISTS /dev/nvidiactl AND TARGET otimes_core_set_builder))
  target_link_libraries(test_distributed PRIVATE otimes::distributed)
else() # the same library without GPUs: building those takes a minute, and nothing here would use them
  set(backend "${PROJECT_SOURCE_DIR}/backend")
  add_library(otimes_test_distributed STATIC EXCLUDE_FROM_ALL "${backend}/distributed/communicator.cpp"
              "${backend}/distributed/host_transport.cpp" "${backend}/none/no_nccl.cpp")
  if(OTIMES_MPI_FOUND)
    target_sources(otimes_test_distributed PRIVATE "${backend}/mpi/mpi_transport.cpp")
    target_link_libraries(otimes_test_distributed PRIVATE MPI::MPI_CXX)
  else()
    target_sources(otimes_test_distributed PRIVATE "${backend}/none/no_mpi.cpp")
  endif()
  target_link_libraries(otimes_test_distributed PUBLIC otimes_test_no_cuda)
  if(TARGET otimes_test_compiled)
    target_link_libraries(otimes_test_distributed PUBLIC otimes_test_compiled)
  endif()
  target_link_libraries(test_distributed PRIVATE otimes_test_distributed)
endif()

if(OTIMES_MPI_FOUND)
  # More ranks than cores, in a container, as root where that is who runs the tests.
  set(launch "${MPIEXEC_EXECUTABLE}")
  execute_process(COMMAND "${MPIEXEC_EXECUTABLE}" --version OUTPUT_VARIABLE version ERROR_QUIET)
  if(version MATCHES "Open MPI|OpenRTE")
    list(APPEND launch --oversubscribe --bind-to none --mca btl_vader_single_copy_mechanism none)
    execute_process(COMMAND id -u OUTPUT_VARIABLE user OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(user STREQUAL "0")
      list(APPEND launch --allow-run-as-root)
    endif()
    add_test(NAME mpi.lost_rank COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/distributed/lost_rank.sh"
                                        $<TARGET_FILE:test_distributed> ${launch} --enable-recovery)
    set_tests_properties(mpi.lost_rank PROPERTIES LABELS mpi TIMEOUT 60 ENVIRONMENT "OMP_NUM_THREADS=1;ASAN_OPTIONS=detect_leaks=0" PROCESSORS 2)
  endif()
  foreach(case late_rank finalized)
    add_test(NAME mpi.${case} COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/distributed/each_rank.sh" ${case} 2
                                      $<TARGET_FILE:test_distributed> ${launch})
    set_tests_properties(mpi.${case} PROPERTIES LABELS mpi TIMEOUT 60 ENVIRONMENT "OMP_NUM_THREADS=1;ASAN_OPTIONS=detect_leaks=0" PROCESSORS 2)
  endforeach()
  foreach(ranks RANGE 1 6)
    add_test(NAME mpi.${ranks}_ranks COMMAND ${launch} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:test_distributed>
                                             --test-case-exclude=*[alone]*,*[gpus]*,*[long]*)
    set_tests_properties(mpi.${ranks}_ranks PROPERTIES LABELS mpi TIMEOUT 120 ENVIRONMENT "OMP_NUM_THREADS=1;ASAN_OPTIONS=detect_leaks=0" PROCESSORS 2)
  endforeach()
else()
  add_test(NAME mpi COMMAND "${CMAKE_COMMAND}" -E echo "tests of MPI ranks are skipped: no MPI was found")
  set_tests_properties(mpi PROPERTIES SKIP_REGULAR_EXPRESSION "are skipped" LABELS mpi)
endif()

# multi-gpu: the cases on GPUs, by name.
add_test(NAME multi_gpu COMMAND test_distributed "--test-case=*[gpus]*")
set_tests_properties(multi_gpu PROPERTIES LABELS multi-gpu TIMEOUT 300 SKIP_REGULAR_EXPRESSION "several GPUs are skipped")
