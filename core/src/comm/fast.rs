//! How the fast path of a call ends.

/// How the fast path of a call ended.
///
/// The fast path is a part of the whole call. A caller that must keep its own function small, such as a
/// function of a C interface, can call the fast path first. If the fast path returns [`Fast::Slow`],
/// the caller makes the whole call in another function. The caller may also make the whole call
/// directly: it includes the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Fast<T> {
    /// The call is done. If the NIC refused the work requests of a send or receive, testing its request
    /// returns the error.
    Done(T),
    /// The call found nothing to complete: call again.
    Pending,
    /// The fast path cannot handle this case: make the whole call.
    Slow,
}
