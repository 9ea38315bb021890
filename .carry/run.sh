cd .carry; gunzip *.gz; chmod +x test_cuda dotp_new sums_?
nvidia-smi --query-gpu=name --format=csv,noheader
export XDG_CACHE_HOME=/tmp/cache
(timeout 100 ./dotp_new f > $OUT/p.txt 2>&1; tail -1 $OUT/p.txt)
for f in executors forms half_storage long_factors products random_programs random_shapes running solves streaming; do (timeout 400 ./test_cuda -sf="*cuda/$f.cpp" > $OUT/t_$f.txt 2>&1; echo "rc $? $f" >> $OUT/t_$f.txt) & done
wait
tail -qn 4 $OUT/t_*.txt | grep -v "^$"
(for s in sums_f sums_d; do for t in memcheck racecheck initcheck; do timeout 60 compute-sanitizer --tool $t ./$s s > $OUT/z_$s$t.txt 2>&1; echo $s $t $(tail -1 $OUT/z_$s$t.txt); done; done)
