//! The result of a call: an NCCL code, and a logged message if the call fails.

use std::any::Any;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};

use invar::{ConnectionError, Error, ErrorKind};

use crate::abi::Code;

/// A failed call, whose message has already been logged.
pub(crate) struct Failed(pub(crate) Code);

/// The result of a call's body.
pub(crate) type Outcome = Result<(), Failed>;

/// Runs the body of a call from NCCL and turns a panic into an error code.
#[inline(always)]
pub(crate) fn call(body: impl FnOnce() -> Outcome) -> Code {
    caught(|| match body() {
        Ok(()) => Code::SUCCESS,
        Err(Failed(code)) => code,
    })
}

/// Runs a body that returns a code, and turns a panic into an error code.
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

/// NCCL made an invalid call: logs the reason.
#[cold]
#[inline(never)]
pub(crate) fn misused(why: impl fmt::Display) -> Failed {
    log::warn!("{why}");
    Failed(Code::INTERNAL_ERROR)
}

/// Returns the number of bytes or elements of a call. NCCL passes an `int` in older versions of the interface,
/// and a `size_t` in newer ones. `of` names the call and the unit, as in `("regMr", "bytes")`.
pub(crate) fn length<Size>(of: (&str, &str), size: Size) -> Result<usize, Failed>
where
    Size: TryInto<usize> + fmt::Display + Copy,
{
    let (function, unit) = of;
    size.try_into().map_err(|_| misused(format_args!("{function} of {size} {unit}")))
}

/// A required pointer is null: logs its name.
#[cold]
#[inline(never)]
pub(crate) fn null(what: &str) -> Failed {
    log::warn!("{what} is null");
    Failed(Code::INVALID_ARGUMENT)
}

/// The user's settings are impossible: logs the error.
#[cold]
#[inline(never)]
pub(crate) fn refused(error: &Error) -> Failed {
    log::warn!("{error}");
    Failed(match error.kind() {
        ErrorKind::Usage => Code::INVALID_USAGE,
        _ => code(error),
    })
}

/// An operation of the library failed: logs the error.
#[cold]
#[inline(never)]
pub(crate) fn failed(error: &Error) -> Failed {
    log::warn!("{error}");
    Failed(code(error))
}

/// The NCCL code of an error:
///
/// - `ncclInvalidUsage`: the ranks disagree.
/// - `ncclRemoteError`: the peer or the network path to it failed.
/// - `ncclSystemError`: this host failed.
/// - `ncclInternalError`: NCCL misused the plugin.
pub(crate) fn code(error: &Error) -> Code {
    match (error.connection(), error.kind()) {
        (Some(ConnectionError::SizeMismatch { .. } | ConnectionError::TooLong(_)), _)
        | (_, ErrorKind::Incompatible) => Code::INVALID_USAGE,
        (_, ErrorKind::Usage) => Code::INTERNAL_ERROR,
        (_, ErrorKind::Local) => Code::SYSTEM_ERROR,
        _ => Code::REMOTE_ERROR,
    }
}
