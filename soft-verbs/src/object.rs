//! Objects to which a program gets pointers.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Context,
    Pd,
    Ah,
    Mr,
    Mw,
    Channel,
    Cq,
    Srq,
    Qp,
}

/// An object that begins with the structure of the header, up to [`Object::OFFSET`] bytes before it.
///
/// # Safety
/// `Base` lies `OFFSET` bytes behind the start of the implementing type, which is `repr(C)`.
pub(crate) unsafe trait Object: Sized {
    /// The structure of the header that the program's pointer names.
    type Base;
    const KIND: Kind;
    const OFFSET: usize = 0;
}

fn living() -> MutexGuard<'static, HashMap<usize, Kind>> {
    static LIVING: LazyLock<Mutex<HashMap<usize, Kind>>> = LazyLock::new(Mutex::default);
    LIVING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives an object to the program.
pub(crate) fn give<T: Object>(object: T) -> *mut T::Base {
    let base = Box::into_raw(Box::new(object)).wrapping_byte_add(T::OFFSET).cast::<T::Base>();
    living().insert(base.addr(), T::KIND);
    base
}

/// The object that a pointer of the program names.
///
/// # Errors
/// `EINVAL`: the pointer names no living object of this kind.
pub(crate) fn get<'a, T: Object>(base: *mut T::Base) -> Result<&'a T, c_int> {
    with(base, |_: &T| ())?;
    // SAFETY: `give` made this object, and it lives. The program must not destroy an object during a call that
    // uses it.
    Ok(unsafe { trusted(base) })
}

/// Calls `look` with the object that a pointer of the program names. Nobody takes the object back meanwhile.
///
/// # Errors
/// `EINVAL`: the pointer names no living object of this kind.
pub(crate) fn with<T: Object, R>(
    base: *mut T::Base,
    look: impl FnOnce(&T) -> R,
) -> Result<R, c_int> {
    let living = living();
    match living.get(&base.addr()) {
        // SAFETY: `give` made this object, and `take` needs the lock.
        Some(&kind) if kind == T::KIND => Ok(look(unsafe { trusted(base) })),
        _ => Err(libc::EINVAL),
    }
}

/// The object that a pointer of the program names.
///
/// # Safety
/// The pointer names a living object of this kind.
#[inline(always)]
pub(crate) unsafe fn trusted<'a, T: Object>(base: *mut T::Base) -> &'a T {
    // SAFETY: the caller vouches for it; `give` made the pointer from a `T` in this way.
    unsafe { &*base.wrapping_byte_sub(T::OFFSET).cast::<T>() }
}

/// Checks that nothing else uses what an object shares with others.
///
/// # Errors
/// `EBUSY`: something does.
pub(crate) fn unused<T>(shared: &Arc<T>) -> Result<(), c_int> {
    if Arc::strong_count(shared) == 1 { Ok(()) } else { Err(libc::EBUSY) }
}

/// Takes an object back, unless `check` refuses.
pub(crate) fn take<T: Object>(
    base: *mut T::Base,
    check: impl FnOnce(&T) -> Result<(), c_int>,
) -> Result<Box<T>, c_int> {
    let mut living = living();
    if living.get(&base.addr()) != Some(&T::KIND) {
        return Err(libc::EINVAL);
    }
    // SAFETY: `give` made this object, and it lives.
    check(unsafe { trusted(base) })?;
    living.remove(&base.addr());
    // SAFETY: `give` made this pointer by `Box::into_raw`, and only one call removes it from the table.
    Ok(unsafe { Box::from_raw(base.wrapping_byte_sub(T::OFFSET).cast::<T>()) })
}
