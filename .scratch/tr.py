import sys,time,json
from adakern.benchmarks import truth
quick='--full' not in sys.argv
names=[a for a in sys.argv[1:] if not a.startswith('-')] or list(truth.CHECKS)
for n in names:
    t=time.time()
    for r in truth.CHECKS[n](quick):
        print(f"{n:14s} {r.setting:95s} {r.measured:.5g} ± {r.error:.2g} expected {r.expected:.5g} ± {r.doubt:.2g} sig {r.sigmas:.2f} ok={r.ok}",flush=True)
    print(n,'took',round(time.time()-t,1),flush=True)
