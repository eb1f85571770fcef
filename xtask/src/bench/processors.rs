//! Binds the two ends of a measurement to processors. Otherwise Linux sometimes keeps both on one
//! processor for seconds, and then they reach about half of the throughput.

use std::thread;

use invar_linux::processors;
use rustix::thread::{CpuSet, sched_setaffinity};

/// A processor for each end. The value is `None` where the process has fewer than two processors.
#[derive(Clone, Copy)]
pub(super) struct Processors(Option<[CpuSet; 2]>);

impl Processors {
    /// Leaves the choice of processors to Linux.
    pub(super) const ANY: Processors = Processors(None);

    /// The first two processors that this process may use.
    pub(super) fn two() -> Processors {
        let mut each = processors::allowed().into_iter();
        Processors(each.next().zip(each.next()).map(<[CpuSet; 2]>::from))
    }

    /// Calls `call` in a new thread on the processor of `end`. Threads and processes that `call` starts
    /// stay on that processor.
    pub(super) fn call<R: Send>(self, end: usize, call: impl FnOnce() -> R + Send) -> R {
        let Processors(Some(sets)) = self else { return call() };
        let bound = || {
            // If the binding fails, `call` runs on any processor: slower, but correct.
            let _ = sched_setaffinity(None, &sets[end]);
            call()
        };
        thread::scope(|scope| scope.spawn(bound).join()).expect("the function does not panic")
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::sched_getaffinity;

    use super::*;

    #[test]
    fn each_end_has_a_processor_of_its_own() {
        let before = sched_getaffinity(None).unwrap();
        let [a, b] = [0, 1].map(|end| Processors::two().call(end, || sched_getaffinity(None)));
        if before.count() < 2 {
            assert_eq!((a.unwrap(), b.unwrap()), (before, before));
        } else {
            let (a, b) = (a.unwrap(), b.unwrap());
            assert_eq!((a.count(), b.count()), (1, 1));
            assert_ne!(a, b);
        }
        assert_eq!(sched_getaffinity(None).unwrap(), before, "only those threads");
    }
}
