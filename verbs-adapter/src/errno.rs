//! Explanations of the verbs' error numbers.

use invar_core::nic::{NicError, Verb};

/// Makes the error of a verb that has set `errno`.
#[cold]
pub(crate) fn last(verb: Verb) -> NicError {
    of(verb, std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// Makes the error of a verb that has returned its error number; some drivers return −1 and set `errno`.
#[cold]
pub(crate) fn of(verb: Verb, errno: i32) -> NicError {
    match errno {
        -1 => last(verb),
        _ => NicError::new(verb, errno.abs(), cause(verb, errno.abs())),
    }
}

fn cause(verb: Verb, errno: i32) -> &'static str {
    match (verb, errno) {
        (Verb::RegMr, libc::ENOMEM | libc::EAGAIN | libc::EPERM) => {
            "the memory cannot be pinned: allow this process to lock more (`ulimit -l unlimited`; \
             in a container `docker run --ulimit memlock=-1`), or free memory"
        }
        (Verb::RegMr, libc::EFAULT) => "not all of the range is mapped memory",
        (Verb::RegMr | Verb::RegDmabufMr, libc::EINVAL) => {
            "the device does not take this range with these rights"
        }
        (Verb::RegMr | Verb::RegDmabufMr, libc::EOPNOTSUPP) => {
            "the device or the kernel cannot register such memory"
        }
        (Verb::RegDmabufMr, libc::EBADF) => "the descriptor is not that of a DMA-BUF",
        (Verb::CreateQp | Verb::CreateCq | Verb::AllocPd, libc::ENOMEM) => {
            "the device has no more room, or no memory can be pinned for it: see `rdma resource` \
             for what is in use, and allow locking memory (`ulimit -l unlimited`)"
        }
        (Verb::CreateQp | Verb::CreateCq, libc::EINVAL) => "more than the device can hold",
        (Verb::ModifyQp, libc::EINVAL) => {
            "the state, the GID or P_Key index, or the path MTU is not possible there"
        }
        (Verb::ModifyQp, libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH) => {
            "the peer's GID is not reached from ours: are both in one subnet, or is there a route \
             (NCCL_IB_GID_INDEX, NCCL_IB_ADDR_RANGE)?"
        }
        (Verb::PostSend, libc::ENOMEM) => "the send queue is full",
        (Verb::PostSend, libc::EFAULT) => "inline bytes that are in no registered memory",
        (Verb::PostRecv, libc::ENOMEM) => "the receive queue is full",
        (Verb::PostSend | Verb::PostRecv, libc::EINVAL) => {
            "the queue pair's state does not allow it, or the request is malformed"
        }
        (_, libc::EIO | libc::ENODEV | libc::ENXIO | libc::ESTALE) => {
            "the device is gone or has failed (see dmesg)"
        }
        (_, libc::EACCES | libc::EPERM) => "no permission for the device (/dev/infiniband)",
        (_, libc::EMFILE | libc::ENFILE) => "too many open files",
        (_, libc::ENOMEM) => "out of memory",
        (_, libc::EBUSY) => "something still uses it",
        (_, libc::EINVAL) => "invalid argument",
        (_, libc::ENODATA | libc::ENOENT) => "there is nothing",
        (_, libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT) => {
            "the device or its driver cannot do this"
        }
        (_, libc::EAGAIN) => "the resource is not available now",
        (_, libc::EBADF) => "a bad file descriptor",
        (_, libc::ETIMEDOUT) => "no answer in time",
        _ => "refused by the device",
    }
}
