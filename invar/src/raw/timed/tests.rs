use std::collections::VecDeque;
use std::ptr;
use std::thread::sleep;
use std::time::Duration;

use invar_core::metrics::EndNumbers;
use invar_core::recorder::MessageTimes;
use invar_core::stall::{EndView, Process, Role};
use invar_linux::recorder::{own_files, process_of, read};

use super::*;
use crate::raw::{EndState, Keeper, KeeperEnd};
use crate::recorder_place::RecorderPlace;

/// Time between two calls of a test.
const PAUSE: Duration = Duration::from_millis(1);
/// The number of the connection of an end, which its record has too.
const CONNECTION: u64 = 0x7469_6d65_6465_6e64;

/// An end whose calls have these outcomes, in this order.
#[derive(Default)]
struct Scripted {
    /// The numbers of the requests that calls start.
    starts: VecDeque<Option<u32>>,
    /// For each test, the sizes that it returns and the requests that are done and untested afterwards.
    tests: VecDeque<(Option<Vec<u32>>, Vec<u32>)>,
    done: Vec<u32>,
}

impl Scripted {
    fn start(&mut self) -> Started {
        Ok(self.starts.pop_front().expect("a start").map(Request::from_raw))
    }

    fn tested(&mut self) -> Option<Vec<u32>> {
        let (sizes, done) = self.tests.pop_front().expect("a test");
        self.done = done;
        sizes
    }
}

impl End for Scripted {
    fn ends(&self) -> Ends {
        Ends::default()
    }

    fn carriers(&mut self, _: &Request) -> Option<Vec<Carrier>> {
        None
    }

    fn snapshot(&self, _: bool) -> Option<Snapshot> {
        let process = Process::new(std::process::id(), "host");
        Some(Snapshot {
            role: Role::Sender,
            ends: Ends { number: CONNECTION, ..Ends::default() },
            view: EndView { process, ..EndView::default() },
            verdict: None,
            numbers: EndNumbers::default(),
            nic: None,
            state: EndState::default(),
            messages: Vec::new(),
        })
    }

    fn is_done(&mut self, request: &Request) -> bool {
        self.done.contains(&request.raw())
    }
}

impl SendEnd for Scripted {
    unsafe fn isend(&mut self, _: &SendBuf, _: u32) -> Started {
        self.start()
    }

    fn room(&mut self, _: u32) -> Result<Option<u32>, CoreError> {
        Ok(None)
    }

    fn test(&mut self, _: &Request) -> Result<Option<u32>, CoreError> {
        Ok(self.tested().map(|sizes| sizes[0]))
    }
}

impl RecvEnd for Scripted {
    unsafe fn irecv(&mut self, _: &[RecvBuf]) -> Started {
        self.start()
    }

    unsafe fn iflush(&mut self, _: &[FlushBuf]) -> Result<Flush, CoreError> {
        Ok(Flush::NotNeeded)
    }

    unsafe fn test(&mut self, _: &Request, sizes: *mut u32) -> Result<Option<usize>, CoreError> {
        let received = self.tested();
        Ok(received.map(|received| {
            // SAFETY: the caller has promised that `sizes` is null or has room for all sizes.
            unsafe { copy_sizes(&received, sizes) };
            received.len()
        }))
    }
}

fn messages<E>(end: &TimedEnd<E>) -> Vec<MessageTimes> {
    end.messages.iter().copied().collect()
}

#[test]
fn a_send_is_timed_from_its_first_call_to_its_test_and_a_later_one_may_be_done_before_it() {
    let starts = VecDeque::from([None, Some(0), Some(8)]);
    let tests = VecDeque::from([(None, vec![8]), (Some(vec![5]), vec![8])]);
    let end = Box::new(Scripted { starts, tests, done: Vec::new() });
    let mut end = TimedEnd::<Box<dyn SendEnd>>::new(end);
    for (len, tag) in [(6, 7), (6, 7), (9, 3)] {
        // SAFETY: this end looks at no memory.
        let _ = unsafe { end.isend(&SendBuf { addr: 0, len, lkey: 0 }, tag) }.unwrap();
        sleep(PAUSE);
    }
    assert_eq!(SendEnd::test(&mut end, &Request::from_raw(0)), Ok(None));
    sleep(PAUSE);
    assert_eq!(SendEnd::test(&mut end, &Request::from_raw(0)), Ok(Some(5)));
    let messages = messages(&end);
    let [first, second] = messages[..] else { panic!("{messages:?}") };
    let pause_ns = PAUSE.as_nanos() as u64;
    assert!(first.waited_ns() >= pause_ns && first.took_ns() >= Some(2 * pause_ns), "{first:?}");
    assert_eq!((first.bytes, first.tag, first.untested_ns()), (5, 7, Some(0)));
    assert_eq!((second.bytes, second.tag, second.waited_ns()), (9, 3, 0));
    assert!(second.done_ns.is_some() && second.done_ns < first.done_ns, "{messages:?}");
    assert_eq!(second.tested_ns, None);
}

#[test]
fn a_receive_of_two_buffers_is_one_message_and_its_sizes_reach_a_caller_that_wants_them() {
    let starts = VecDeque::from([Some(0), Some(1)]);
    let tests = VecDeque::from([(Some(vec![3, 4]), vec![]), (Some(vec![1, 0]), vec![])]);
    let end = Box::new(Scripted { starts, tests, done: Vec::new() });
    let mut end = TimedEnd::<Box<dyn RecvEnd>>::new(end);
    let bufs = [10, 20].map(|len| RecvBuf { addr: 1, len, tag: len, rkey: 1 });
    let mut sizes = [0; 2];
    for sizes in [sizes.as_mut_ptr(), ptr::null_mut()] {
        // SAFETY: this end looks at no memory of buffers, and `sizes` has room for both sizes.
        let tested = unsafe {
            let request = end.irecv(&bufs).unwrap().expect("a request");
            RecvEnd::test(&mut end, &request, sizes)
        };
        assert_eq!(tested, Ok(Some(2)));
    }
    assert_eq!(sizes, [3, 4]);
    let received = messages(&end);
    let received: Vec<_> = received.iter().map(|of| (of.bytes, of.buffers, of.tag)).collect();
    assert_eq!(received, [(7, 2, 10), (1, 2, 10)]);
}

#[test]
fn an_end_that_is_dropped_before_a_look_leaves_its_last_messages_in_its_record() {
    let pid = std::process::id();
    // The file lasts as long as a place in it is taken.
    let _place = RecorderPlace::take(Process::new(pid, "host")).unwrap();
    let (starts, tests) = (VecDeque::from([Some(3)]), VecDeque::from([(Some(vec![5]), vec![])]));
    let end = Box::new(Scripted { starts, tests, done: Vec::new() });
    let end = TimedEnd::<Box<dyn SendEnd>>::new(end);
    let mut end = KeeperEnd::new(end, &Keeper::without_thread());
    // SAFETY: this end looks at no memory.
    let request = unsafe { end.isend(&SendBuf { addr: 0, len: 6, lkey: 0 }, 7) };
    let request = request.unwrap().expect("a request");
    assert_eq!(SendEnd::test(&mut end, &request), Ok(Some(5)));
    drop(end);
    let files = own_files().into_iter().filter(|path| process_of(path) == Some(pid));
    let mut records = files.filter_map(|path| read(&path).ok()).flat_map(|of| of.records);
    let (_, record) = records.find(|(_, of)| of.number == CONNECTION).expect("a record");
    let messages: Vec<_> = record.messages.iter().map(|of| (of.tag, of.bytes)).collect();
    assert_eq!(messages, [(7, 5)]);
    assert!(record.messages[0].tested_ns.is_some(), "{record:?}");
}

#[test]
fn only_ends_that_keep_times_are_wrapped() {
    use FlightRecorder::{Events, Messages, Off};
    for (recorder, is_plain) in [(Off, true), (Events, true), (Messages, false)] {
        let mut plain = [false; 2];
        send_end(Box::new(Scripted::default()), recorder, |end| {
            plain[0] = true;
            AnySend::Custom(end)
        });
        recv_end(Box::new(Scripted::default()), recorder, |end| {
            plain[1] = true;
            AnyRecv::Custom(end)
        });
        assert_eq!(plain, [is_plain; 2], "{recorder:?}");
    }
}
