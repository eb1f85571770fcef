//! The limit on locked memory, which NICs need for registered memory.

use crate::doctor::host::Host;
use crate::doctor::rdma::RdmaDevice;
use crate::doctor::report::{Finding, Report, Severity};

/// Below this, not even the queues and buffers of a few connections fit.
const BAD_BELOW_BYTES: u64 = 64 << 20;

pub(super) fn check(host: &Host, report: &mut Report) {
    let Some(bytes) = host.system.memlock_limit_bytes() else {
        return report.well("this process may lock any amount of memory");
    };
    if RdmaDevice::names_used(host).is_empty() {
        return report.well("no RDMA device needs locked memory");
    }
    let size = match bytes {
        0..0x10_0000 => format!("{} KiB", bytes / 1024),
        _ => format!("{} MiB", bytes >> 20),
    };
    report.find(Finding {
        severity: if bytes < BAD_BELOW_BYTES { Severity::Bad } else { Severity::Warn },
        id: "memlock-limit",
        subject: "RLIMIT_MEMLOCK".to_owned(),
        what: format!("this process may lock {size} of memory"),
        costs:
            "registering more memory with an RDMA device fails (ENOMEM), and so does the connection"
                .to_owned(),
        mend: mend(host).to_owned(),
    });
}

/// The limit comes from the program that started this process.
fn mend(host: &Host) -> &'static str {
    if host.var("SLURM_JOB_ID").is_some() {
        "systemctl edit slurmd   # on each node: LimitMEMLOCK=infinity below [Service]; and \
         PropagateResourceLimitsExcept=MEMLOCK in slurm.conf; then restart slurmd"
    } else if host.is_kubernetes() {
        "systemctl edit containerd   # or crio, on each node: LimitMEMLOCK=infinity below [Service], then \
         restart it; or give the container the capability IPC_LOCK"
    } else if host.is_container() {
        "docker run --ulimit memlock=-1 …"
    } else {
        "ulimit -l unlimited   # as root, or `* - memlock unlimited` in /etc/security/limits.conf; \
         systemd: LimitMEMLOCK=infinity"
    }
}
