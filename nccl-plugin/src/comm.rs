//! Comms: an end of a connection, and what `entry` calls, compiled for the NIC that it is on.

mod recv;
mod send;
mod test;

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use invar::Device;
use invar::raw::{AnyRecv, AnySend, Carrier, End, Request};

use crate::abi::Code;
use crate::outcome::{Failed, Outcome, call, failed, misused};
use crate::place::{self, Place};
use crate::profiler;

/// Longest message: what the 32-bit fields on the wire can say.
pub(crate) const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// One end of a connection, as NCCL has it.
#[repr(C)]
pub(crate) struct Comm {
    pub(crate) calls: Calls,
    pub(crate) end: Erased,
    rest: Box<Rest>,
}

/// The [`Held`] of the kind of end that the calls are compiled for; they have it for themselves, one
/// at a time.
pub(crate) type Erased = NonNull<()>;

/// An end, and what its calls need beside.
#[repr(C)]
struct Held<E> {
    end: E,
    /// See [`place::requests`].
    requests: u32,
    place: Option<&'static Place>,
    /// What a test is to answer, while it polls: here it takes no registers.
    asked: Asked,
    /// The request that it waits for where tests go on with [`Calls::test_again`].
    waiting: *mut c_void,
}

/// What a test is about, and where it says whether that is done.
struct Asked {
    request: Request,
    done: *mut c_int,
    sizes: *mut c_int,
}

/// What is not needed for a message.
struct Rest {
    kind: Kind,
    device: Device,
    /// Its number.
    number: c_int,
    carriers: unsafe fn(Erased, &Request) -> Option<Vec<Carrier>>,
    close: unsafe fn(Erased),
}

/// What can be done with an end of one kind. As of NCCL's table, but that the end stands for the
/// comm.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Calls {
    pub(crate) isend: ISend,
    pub(crate) irecv_int: IRecv<c_int>,
    pub(crate) irecv: IRecv<usize>,
    pub(crate) iflush: IFlush,
    pub(crate) test: Test,
    /// Where the last poll on the comm was for a request that still waits: as a rule it is tested
    /// next.
    pub(crate) test_again: Test,
}

/// Receives of one buffer, and of any number of them.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IRecv<S> {
    pub(crate) one: IRecvOne<S>,
    pub(crate) several: IRecvSeveral<S>,
}

/// End, memory, bytes, tag, registration, request.
type ISend =
    unsafe extern "C" fn(Erased, *mut c_void, usize, c_int, *mut c_void, *mut *mut c_void) -> Code;
/// End, request, and of the buffer memory, bytes, tag, registration.
type IRecvOne<S> = unsafe extern "C" fn(
    Erased,
    *mut *mut c_void,
    *mut *mut c_void,
    *mut S,
    *mut c_int,
    *mut *mut c_void,
) -> Code;
/// End, number of buffers, and of each memory, bytes, tag, registration; request.
type IRecvSeveral<S> = unsafe extern "C" fn(
    Erased,
    c_int,
    *mut *mut c_void,
    *mut S,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Code;
/// End, number of buffers, and of each memory, bytes, registration; request.
type IFlush = unsafe extern "C" fn(
    Erased,
    c_int,
    *mut *mut c_void,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Code;
/// Request, whether it is done, bytes of each buffer; end.
pub(crate) type Test = unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int, Erased) -> Code;

/// A size as a version of the interface counts it.
pub(crate) trait Bytes: Copy {
    fn bytes(self) -> usize;
    /// The same of a buffer; one that is too long stays so.
    fn len(self) -> u32;
    /// Receives of such sizes.
    fn irecv(calls: &Calls) -> &IRecv<Self>;
}

impl Bytes for c_int {
    /// A negative size becomes one that is too long.
    #[inline(always)]
    fn bytes(self) -> usize {
        self as usize
    }

    #[inline(always)]
    fn len(self) -> u32 {
        self as u32
    }

    #[inline(always)]
    fn irecv(calls: &Calls) -> &IRecv<Self> {
        &calls.irecv_int
    }
}

impl Bytes for usize {
    #[inline(always)]
    fn bytes(self) -> usize {
        self
    }

    #[inline(always)]
    fn len(self) -> u32 {
        u32::try_from(self).unwrap_or(u32::MAX)
    }

    #[inline(always)]
    fn irecv(calls: &Calls) -> &IRecv<Self> {
        &calls.irecv
    }
}

/// Which end a comm is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Recv,
}

impl Comm {
    /// Makes a sending end known to NCCL.
    pub(crate) fn put_send(end: AnySend, device: (c_int, &Device)) -> Result<*mut c_void, Failed> {
        match end {
            AnySend::Verbs(end) => Self::put(end, send::calls, Kind::Send, device),
            AnySend::Socket(end) => Self::put(end, send::calls, Kind::Send, device),
            AnySend::Soft(end) => Self::put(end, send::calls, Kind::Send, device),
            _ => Err(misused("a device of a kind that this plugin does not know")),
        }
    }

    /// Makes a receiving end known to NCCL.
    pub(crate) fn put_recv(end: AnyRecv, device: (c_int, &Device)) -> Result<*mut c_void, Failed> {
        match end {
            AnyRecv::Verbs(end) => Self::put(end, recv::calls, Kind::Recv, device),
            AnyRecv::Socket(end) => Self::put(end, recv::calls, Kind::Recv, device),
            AnyRecv::Soft(end) => Self::put(end, recv::calls, Kind::Recv, device),
            _ => Err(misused("a device of a kind that this plugin does not know")),
        }
    }

    fn put<E: End>(
        end: Box<E>,
        calls: fn(&E) -> Calls,
        kind: Kind,
        (number, device): (c_int, &Device),
    ) -> Result<*mut c_void, Failed> {
        let close = |end: Erased| {
            // SAFETY: it was made of a box, below, and goes with its comm.
            let held = unsafe { Box::from_raw(end.cast::<Held<E>>().as_ptr()) };
            Box::new(held.end).close();
        };
        // SAFETY: of such an end, as said where it is called.
        let carriers =
            |end: Erased, request: &Request| unsafe { Held::<E>::of(end).end.carriers(request) };
        let calls = calls(&end);
        let (done, sizes) = (ptr::null_mut(), ptr::null_mut());
        let asked = Asked { request: Request::from_raw(0), done, sizes };
        let held = Held { requests: 0, place: None, asked, waiting: ptr::null_mut(), end: *end };
        let held = NonNull::from(Box::leak(Box::new(held)));
        let rest = Box::new(Rest { kind, device: device.clone(), number, carriers, close });
        let (comm, place) = place::put(Comm { calls, end: held.cast(), rest })
            .map_err(|_| misused(format_args!("more than {} comms", place::COMMS_MAX)))?;
        // SAFETY: it lives as long as the comm, of which nobody knows yet.
        unsafe {
            (*held.as_ptr()).requests = place::requests(comm);
            (*held.as_ptr()).place = Some(place);
        }
        Ok(comm)
    }

    /// The device that it is on.
    pub(crate) fn device(&self) -> &Device {
        &self.rest.device
    }

    /// The number of that.
    pub(crate) fn device_number(&self) -> c_int {
        self.rest.number
    }

    /// Which end it is.
    pub(crate) fn kind(&self) -> Kind {
        self.rest.kind
    }

    /// What carries a request that is under way, if that is known already.
    ///
    /// # Safety
    /// There is no other call on the comm.
    pub(crate) unsafe fn carriers(&self, request: *mut c_void) -> Option<Vec<Carrier>> {
        // SAFETY: the end is of the kind that this is for, and goes with its comm.
        unsafe { (self.rest.carriers)(self.end, &Request::from_raw(place::token(request))) }
    }
}

impl<E> Held<E> {
    /// The end, for the usual part of a call that NCCL makes, which ends no request.
    ///
    /// # Safety
    /// `E` is what the calls of the comm are compiled for, NCCL does not close it during the call,
    /// and no other call has it.
    #[inline(always)]
    unsafe fn of<'a>(end: Erased) -> &'a mut Self {
        // SAFETY: the caller's promise; it lives as long as the comm.
        unsafe { end.cast().as_mut() }
    }

    /// The same for any call: what was found waiting before may be over then.
    ///
    /// # Safety
    /// As of [`Held::of`].
    #[inline(always)]
    unsafe fn whole<'a>(end: Erased) -> &'a mut Self {
        // SAFETY: the caller's promise.
        let held = unsafe { Self::of(end) };
        held.forget();
        held
    }

    /// The request that is being tested waits.
    #[cold]
    fn remember(&mut self) {
        self.waiting = place::request(self.asked.request.raw(), self.requests);
        if let Some(place) = self.place {
            // SAFETY: the end goes with the comm that is there.
            place.set_test(unsafe { place.comm() }.calls.test_again);
        }
    }

    /// What was found waiting may be over.
    #[inline(always)]
    fn forget(&self) {
        if let Some(place) = self.place {
            // SAFETY: as above.
            place.set_test(unsafe { place.comm() }.calls.test);
        }
    }

    /// What NCCL is told of a post.
    #[inline(always)]
    fn posted(&self, posted: Result<(), invar::ConnectionError>) -> Code
    where
        E: End,
    {
        match posted {
            Ok(()) => Code::SUCCESS,
            Err(error) => call_failed(self, error),
        }
    }

    /// Hands out the request that a call has started, or null: call again.
    ///
    /// # Safety
    /// There is room for a request.
    #[inline(always)]
    unsafe fn give(&self, started: Option<Request>, request: *mut *mut c_void) -> Code {
        let given = match started {
            Some(started) => place::request(started.raw(), self.requests),
            None => ptr::null_mut(),
        };
        // SAFETY: the caller's promise.
        unsafe { request.write(given) };
        Code::SUCCESS
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        // SAFETY: the end is of the kind that this is for, and goes with its comm.
        unsafe { (self.rest.close)(self.end) };
    }
}

/// A call failed: says so, with both ends.
#[cold]
#[inline(never)]
fn call_failed<E: End>(held: &Held<E>, error: invar::ConnectionError) -> Code {
    held.forget();
    failed(&held.end.failed(error)).0
}

/// `closeSend`.
pub(crate) unsafe extern "C" fn close_send(comm: *mut c_void) -> Code {
    call(|| close(comm, Kind::Send))
}

/// `closeRecv`.
pub(crate) unsafe extern "C" fn close_recv(comm: *mut c_void) -> Code {
    call(|| close(comm, Kind::Recv))
}

fn close(comm: *mut c_void, kind: Kind) -> Outcome {
    if comm.is_null() {
        return Ok(());
    }
    let place = place::find(comm)
        .ok_or_else(|| misused(format_args!("close{kind:?}: {comm:p} is no comm that is open")))?;
    // SAFETY: NCCL closes a comm once, and not during a call on it.
    unsafe {
        if place.comm().rest.kind != kind {
            return Err(misused(format_args!("close{kind:?} of a comm of the other kind")));
        }
        drop(place::remove(place));
    }
    profiler::forget(comm);
    Ok(())
}

/// A call that the other end of a connection takes.
#[cold]
#[inline(never)]
fn wrong_end(function: &str) -> Code {
    misused(format_args!("{function} on the other end of a connection")).0
}

/// A size that no work request can say.
#[cold]
#[inline(never)]
fn too_long(function: &str, size: usize) -> Code {
    let size = size as isize;
    log::warn!("{function} of {size} bytes; a message has at most {MESSAGE_BYTES_MAX}");
    Code::INVALID_USAGE
}
