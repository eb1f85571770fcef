//! Keeps the text of a panic instead of printing it. Only the campaign's report shall show it.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread is kept.
    static KEEP: Cell<bool> = const { Cell::new(false) };
    /// The first panic of this thread.
    static KEPT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Makes a call. If the call panics, the result is the panic's text and place, and the backtrace if
/// `RUST_BACKTRACE` asks for one.
pub(super) fn catch<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(install);
    KEEP.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(call));
    KEEP.set(false);
    let text = KEPT.take();
    result.map_err(|_| text.unwrap_or_default())
}

/// Puts a hook before the present one, which handles the panics of other threads as before.
fn install() {
    let other = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !KEEP.get() {
            return other(panic);
        }
        let backtrace = Backtrace::capture();
        let text = match backtrace.status() {
            BacktraceStatus::Captured => format!("{panic}\n{backtrace}"),
            _ => panic.to_string(),
        };
        KEPT.with_borrow_mut(|kept| {
            kept.get_or_insert(text);
        });
    }));
}
