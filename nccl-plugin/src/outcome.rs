//! How a call ends: as a code, and where it fails with a message that says why.

use std::any::Any;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};

use invar::{ConnectionError, Error, ErrorKind};

use crate::abi::Code;

/// Why a call failed; the message is out already.
pub(crate) struct Failed(pub(crate) Code);

/// What a call gives.
pub(crate) type Outcome = Result<(), Failed>;

/// Runs the body of a call that NCCL makes. A panic ends here.
#[inline(always)]
pub(crate) fn call(body: impl FnOnce() -> Outcome) -> Code {
    caught(|| match body() {
        Ok(()) => Code::SUCCESS,
        Err(Failed(code)) => code,
    })
}

/// As [`call`], for who has a code.
#[inline(always)]
pub(crate) fn caught(body: impl FnOnce() -> Code) -> Code {
    panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| panicked(&*panic))
}

#[cold]
#[inline(never)]
fn panicked(panic: &dyn Any) -> Code {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
    misused(format_args!(
        "a defect of this plugin: it panicked (standard error says where): {text}"
    ))
    .0
}

/// NCCL calls what it should not.
#[cold]
#[inline(never)]
pub(crate) fn misused(why: impl fmt::Display) -> Failed {
    log::warn!("{why}");
    Failed(Code::INTERNAL_ERROR)
}

/// A pointer that is null where a call needs one.
#[cold]
#[inline(never)]
pub(crate) fn null(what: &str) -> Failed {
    log::warn!("{what} is null");
    Failed(Code::INVALID_ARGUMENT)
}

/// The user asks for what cannot be.
#[cold]
#[inline(never)]
pub(crate) fn refused(error: &Error) -> Failed {
    log::warn!("{error}");
    Failed(match error.kind() {
        ErrorKind::Usage => Code::INVALID_USAGE,
        _ => code(error),
    })
}

/// A call failed below.
#[cold]
#[inline(never)]
pub(crate) fn failed(error: &Error) -> Failed {
    log::warn!("{error}");
    Failed(code(error))
}

/// The code for an error: `ncclInvalidUsage` for ranks that disagree, `ncclRemoteError` for the
/// peer and the way to it, `ncclSystemError` for this host, and `ncclInternalError` for NCCL.
pub(crate) fn code(error: &Error) -> Code {
    match (error.connection(), error.kind()) {
        (Some(ConnectionError::SizeMismatch { .. } | ConnectionError::TooLong(_)), _)
        | (_, ErrorKind::Incompatible) => Code::INVALID_USAGE,
        (_, ErrorKind::Usage) => Code::INTERNAL_ERROR,
        (_, ErrorKind::Local) => Code::SYSTEM_ERROR,
        _ => Code::REMOTE_ERROR,
    }
}
