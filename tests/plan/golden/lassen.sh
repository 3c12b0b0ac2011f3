#!/usr/bin/env bash
#BSUB -nnodes 64
#BSUB -W 1:00
#BSUB -q pdebug
#BSUB -J hidl-mpi-sanity
#BSUB -o lsf.log
# hidl run RUN: mpi-sanity on lassen, stack mpi
# Runs 1 step(s), one after another, in this one allocation.
#@ start
[[ -e $directory/plan.json ]] || directory=${LS_SUBCWD:-$directory}
#@ findings
export HIDL_CORES_PER_RANK=11
#@ status
        "$job" "$1" "$2" "$started" "$3" "$step" 1 "${hosts#,}"
#@ end
#@ step
}

# LSF keeps what a job prints to itself until the job has ended, and puts a report of its own before it. So the job
# writes its two files itself, and LSF's report goes to lsf.log.
if [[ -n ${LSB_JOBID:-} && -z ${LSB_INTERACTIVE:-} ]]; then
    exec >> stdout.log 2>> stderr.log
fi

# The allocation's hosts, one a line, in LSF's order. The node that this script runs on comes first, with one slot,
# where it is a launch (or batch) node beside the compute nodes: it is none of them.
list_hosts() {
    local -a pairs
    if [[ -r ${LSB_DJOB_HOSTFILE:-} ]]; then
        sed 's/$/ 1/' "$LSB_DJOB_HOSTFILE"
    elif [[ -n ${LSB_MCPU_HOSTS:-} ]]; then
        read -ra pairs <<< "$LSB_MCPU_HOSTS"
        printf '%s %s\n' "${pairs[@]}"
    else
        echo "neither LSB_DJOB_HOSTFILE nor LSB_MCPU_HOSTS names the allocation's hosts: is this a job of LSF?" >&2
        return 1
    fi | awk '
        !($1 in slots) { host[++hosts] = $1 }
        { slots[$1] += $2 }
        END {
            first = (hosts > 1 && slots[host[1]] == 1 && slots[host[2]] > 1) ? 2 : 1
            for (i = first; i <= hosts; i++) print host[i]
        }'
}

job_id() {
    echo "${LSB_JOBID:-}"
}
#@ hosts
# The MPI library of the site, spectrum-mpi (spectrum-mpi), takes the place of the stack's own: they share one ABI.
mpi_prefix=/usr/tce/packages/spectrum-mpi/spectrum-mpi-rolling-release-clang-ibm-16.0.6-cuda-11.8.0-gcc-11.2.1
# The ranks look whether it is the one that they load.
export HIDL_SITE_MPI=spectrum-mpi

#@ stack
source /apps/hidl/lassen/mpi/current/activate.sh
#@ mpi-first
export OMP_NUM_THREADS=11
export MKL_NUM_THREADS=11
export OPENBLAS_NUM_THREADS=11
export NUMEXPR_NUM_THREADS=11
export TF_NUM_INTRAOP_THREADS=11
export TF_NUM_INTEROP_THREADS=1
export MPI4PY_MPIABI=openmpi
export HIDL_DEVICE=gpu
export HIDL_GPUS_PER_RANK=1
use_system_programs

begin_step '256 ranks on 64 nodes, repetition 1' 64 '{host}'
launch 256 jsrun -n 64 -r 1 -a 4 -c 44 -g 4 -d packed -b packed:11 --smpiargs=-gpu /apps/hidl/lassen/mpi/current/bin/python -m hidl_workloads.world hidl_workloads.mpi_sanity --cores=0 --ranks_per_node=0

finish COMPLETED 0
