//! The messages that the two ends exchange over TCP: Invar's preface, NCCL's QP info, and a ready word.

mod device_name;
mod preface;
mod qp_info;

pub use device_name::{DEVICE_NAME_BYTES, DeviceName};
pub(crate) use device_name::{decode, encode, shorten};
pub use preface::{PREFACE_BYTES, Preface, PrefaceBytes, PrefaceError};
pub use qp_info::{QP_INFO_BYTES, QpInfo, QpInfoBytes, QpInfoError};

/// The connector's last word: `int` 1, in host order as NCCL sends it.
pub const READY: [u8; 4] = 1i32.to_ne_bytes();

/// Bytes of the time that may follow the acceptor's message: nanoseconds of its clock, little-endian.
pub const TIME_BYTES: usize = size_of::<u64>();

/// Bytes of the longest message.
pub const MESSAGE_BYTES_MAX: usize = PREFACE_BYTES + QP_INFO_BYTES;
