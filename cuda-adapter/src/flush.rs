//! Flushing: making received bytes visible to a GPU.
//!
//! A NIC reports a message as soon as it has written it. But the bytes may still be on their way to the
//! GPU's memory when the GPU learns of them. A read that follows the bytes pushes them through. The read
//! is either an RDMA READ of that memory by the NIC (`net_ib.cc ncclIbIflush`) or a call of the driver.
//! Newer GPUs keep such writes in order without a flush.

use std::fmt;

use invar_core::param::Params;

use crate::GpuInfo;
use crate::gdr::Path;
pub use crate::gpu::WritesOrdering;

/// The way to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// No flush: the GPU sees received data without one.
    None,
    /// A flush by [`Gpu::flush_writes`](crate::Gpu::flush_writes), which returns when the flush is done.
    Driver,
    /// A flush by a READ through the NIC (`RecvComm::iflush`).
    Read,
}

/// The way to flush, and the reason for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// The way to flush.
    pub method: Method,
    /// The reason, in words that continue "flush by the driver: …".
    pub reason: &'static str,
}

/// The user's settings for flushes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Never flush (`NCCL_GDR_FLUSH_DISABLE`).
    pub disable: bool,
    /// Flush even if the GPU sees the NIC's writes in order (`NCCL_NET_FORCE_FLUSH`). This setting
    /// affects neither staged bytes nor a process that sets `disable`.
    pub force: bool,
}

impl From<&Params<'_>> for Policy {
    fn from(params: &Params<'_>) -> Self {
        Policy { disable: params.gdr_flush_disable, force: params.net_force_flush }
    }
}

/// Decides how to flush messages that reached `gpu` by `path`.
///
/// If the driver does not report the ordering, GPUs before Hopper need a flush, as in NCCL (`paths.cc
/// ncclTopoNeedFlush`).
pub fn decide(gpu: &GpuInfo, path: Path, policy: Policy) -> Flush {
    let none = |reason| Flush { method: Method::None, reason };
    if path == Path::Staging {
        return none("the driver's copies are seen by what follows them");
    }
    if policy.disable {
        return none("NCCL_GDR_FLUSH_DISABLE=1");
    }
    let ordered = match gpu.writes_ordering {
        Some(ordering) => ordering >= WritesOrdering::Owner,
        None => gpu.compute_capability >= (9, 0),
    };
    if ordered && !policy.force {
        return none("the GPU sees the NIC's writes in their order");
    }
    let reason =
        if ordered { "it is asked for" } else { "the GPU may see the NIC's writes too late" };
    let method = if gpu.host_flush { Method::Driver } else { Method::Read };
    Flush { method, reason }
}

impl fmt::Display for Flush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = match self.method {
            Method::None => "no flush",
            Method::Driver => "flush by the driver",
            Method::Read => "flush by a READ",
        };
        write!(f, "{method}: {}", self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gdr::tests::gpu;

    fn method(gpu: &GpuInfo, path: Path, disable: bool, force: bool) -> Method {
        decide(gpu, path, Policy { disable, force }).method
    }

    #[test]
    fn a_gpu_that_orders_writes_is_flushed_only_by_force() {
        for ordering in [WritesOrdering::Owner, WritesOrdering::AllGpus] {
            let gpu = GpuInfo { writes_ordering: Some(ordering), ..gpu() };
            assert_eq!(method(&gpu, Path::DmaBuf, false, false), Method::None);
            assert_eq!(method(&gpu, Path::DmaBuf, false, true), Method::Read);
        }
        let gpu = GpuInfo { writes_ordering: Some(WritesOrdering::Nobody), ..gpu() };
        assert_eq!(method(&gpu, Path::Peermem, false, false), Method::Read);
    }

    #[test]
    fn the_driver_flushes_where_it_can() {
        let gpu =
            GpuInfo { writes_ordering: Some(WritesOrdering::Nobody), host_flush: true, ..gpu() };
        assert_eq!(method(&gpu, Path::Peermem, false, false), Method::Driver);
    }

    #[test]
    fn without_the_drivers_word_hopper_orders_and_ampere_does_not() {
        for (compute_capability, expected) in
            [((7, 0), Method::Read), ((8, 9), Method::Read), ((9, 0), Method::None)]
        {
            let gpu = GpuInfo { writes_ordering: None, compute_capability, ..gpu() };
            assert_eq!(method(&gpu, Path::Peermem, false, false), expected);
        }
    }

    #[test]
    fn the_user_may_forbid_it_and_staging_needs_none() {
        let gpu = GpuInfo { writes_ordering: Some(WritesOrdering::Nobody), ..gpu() };
        let forbidden = decide(&gpu, Path::Peermem, Policy { disable: true, force: true });
        assert_eq!(forbidden.to_string(), "no flush: NCCL_GDR_FLUSH_DISABLE=1");
        assert_eq!(method(&gpu, Path::Staging, false, true), Method::None);
    }

    #[test]
    fn orderings_are_read_from_the_drivers_numbers() {
        use WritesOrdering::{AllGpus, Nobody, Owner};
        let read = [0, 1, 99, 100, 199, 200, u32::MAX].map(WritesOrdering::from_code);
        assert_eq!(read, [Nobody, Nobody, Nobody, Owner, Owner, AllGpus, AllGpus]);
    }
}
