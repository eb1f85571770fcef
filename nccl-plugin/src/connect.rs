//! Connection setup: from `listen`, `connect` and `accept` to comms.

use std::ffi::{c_int, c_void};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::ptr;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use invar::{
    Accepting, Connecting, ConnectionError, Device, Error, ErrorKind, Handle, Listener, SendComm,
    Wire,
};
use invar_core::nic::Verb;

use crate::abi::{Code, CommConfig, HANDLE_BYTES};
use crate::context::Context;
use crate::host;
use crate::lifetime::{put_recv, put_send};
use crate::outcome::{Failed, Outcome, call, code, failed, misused, null, refused};
use crate::registry::{Number, Registry};

/// Maximum number of peers that connect to one listening comm at a time; more peers wait in the kernel.
const PENDING_MAX: usize = 256;

static LISTENERS: Registry<Listening> = Registry::new(1);
static ATTEMPTS: Registry<Mutex<Trying>> = Registry::new(2);

/// A listening comm.
struct Listening {
    listener: Listener,
    number: c_int,
    device: Device,
    wire: Wire,
    pending: Mutex<Vec<Accepting>>,
}

/// A connection attempt of `connect`.
struct Trying {
    connecting: Connecting,
    number: c_int,
    device: Device,
    /// The peer's address.
    peer: SocketAddr,
    begun: Instant,
    /// The time of NCCL's last call.
    called: Instant,
    /// After this time the user is told of the attempt again.
    told: Duration,
}

/// NCCL does not say when it gives up an attempt, which it polls all the time. It has given up an attempt that it does
/// not poll for this long.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(600);

/// After this time the user is told that an attempt still waits, and again after twice the time.
const TELL_AFTER: Duration = Duration::from_secs(30);

/// `listen` before v11.
pub(crate) unsafe extern "C" fn listen(
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> Code {
    // SAFETY: The caller upholds this function's safety contract.
    call(|| unsafe { start_listening(Context::new(None), device, handle, comm) })
}

/// `listen` since v11.
pub(crate) unsafe extern "C" fn listen_v11(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> Code {
    // SAFETY: The caller upholds this function's safety contract.
    call(|| unsafe { start_listening(Context::from_ptr(context)?, device, handle, comm) })
}

/// # Safety
/// The caller upholds NCCL's contract of `listen`.
unsafe fn start_listening(
    context: Context,
    number: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> Outcome {
    if handle.is_null() || comm.is_null() {
        return Err(null("listen: handle or comm"));
    }
    let host = host::get()?;
    let device = host.device(number)?.open(&host.settings)?;
    let settings = context.apply(&host.settings)?;
    let listener = Listener::bind(&device, &settings).map_err(|error| refused(&error))?;
    let bytes = *listener.handle().as_bytes();
    let wire = settings.wire();
    let listening = Listening { listener, number, device, wire, pending: Mutex::default() };
    // SAFETY: NCCL promises room for a handle and a comm.
    unsafe {
        handle.cast::<[u8; HANDLE_BYTES]>().write_unaligned(bytes);
        comm.write(LISTENERS.put(|_| Arc::new(listening)).to_ptr());
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn accept_v6(listening: *mut c_void, comm: *mut *mut c_void) -> Code {
    // SAFETY: The caller upholds this function's safety contract.
    call(|| unsafe { go_on_accepting(listening, comm) })
}

/// `accept` since v7.
pub(crate) unsafe extern "C" fn accept(
    listening: *mut c_void,
    comm: *mut *mut c_void,
    _device_comm: *mut c_void,
) -> Code {
    // SAFETY: The caller upholds this function's safety contract.
    call(|| unsafe { go_on_accepting(listening, comm) })
}

/// # Safety
/// The caller upholds NCCL's contract of `accept`.
unsafe fn go_on_accepting(listening: *mut c_void, comm: *mut *mut c_void) -> Outcome {
    if comm.is_null() {
        return Err(null("accept: comm"));
    }
    // SAFETY: NCCL promises that `comm` has room for a comm.
    unsafe { comm.write(ptr::null_mut()) };
    let listening = LISTENERS.get(Number::from_ptr(listening));
    let listening = listening.ok_or_else(|| misused("accept: not a listening comm"))?;
    if let Some(end) = listening.poll()? {
        let made = put_recv(end, (listening.number, &listening.device))?;
        // SAFETY: NCCL promises that `comm` has room for a comm.
        unsafe { comm.write(made) };
    }
    Ok(())
}

impl Listening {
    /// Advances the connections of all callers until one is complete, and returns that one.
    fn poll(&self) -> Result<Option<invar::raw::AnyRecv>, Failed> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        while pending.len() < PENDING_MAX
            && let Some(accepting) = self.listener.accept().map_err(|error| failed(&error))?
        {
            pending.push(accepting);
        }
        let mut i = 0;
        while let Some(accepting) = pending.get_mut(i) {
            match accepting.poll_raw() {
                Ok(None) => i += 1,
                Ok(Some(end)) => {
                    drop(pending.remove(i));
                    return Ok(Some(end));
                }
                Err(error) => {
                    drop(pending.remove(i));
                    // The connection logged the error where it occurred.
                    if !self.is_stranger(&error) {
                        return Err(Failed(code(&error)));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Whether the error comes from a caller that may be no rank of ours. Such an error does not end `accept`,
    /// because the peer that NCCL expects may still come. On the wire of NCCL 2.14 no caller proves its identity, so
    /// every caller that gives up or sends invalid data counts as a stranger. On Invar's wire the caller has proved
    /// that it is the peer. NCCL does not call `connect` again after an error, so nobody else would come.
    fn is_stranger(&self, error: &Error) -> bool {
        if self.wire == Wire::Invar {
            return false;
        }
        match error.kind() {
            ErrorKind::Peer | ErrorKind::Network | ErrorKind::Incompatible => true,
            // The device refused the peer's address.
            ErrorKind::Local => matches!(
                error.connection(),
                Some(ConnectionError::Nic(error)) if error.verb == Verb::ModifyQp
            ),
            _ => false,
        }
    }
}

/// `connect` of v6. A send that is longer than its receive is an error.
pub(crate) unsafe extern "C" fn connect_v6(
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> Code {
    // SAFETY: The caller upholds this function's safety contract.
    call(|| unsafe { go_on_connecting(Context::new(None), false, device, handle, comm) })
}

/// `connect` of v7 to v9. Since v7, a send that is longer than its receive is cut to the receive's
/// length on every transport (`net_ib.cc ncclIbIsend` of NCCL after 2.14).
pub(crate) unsafe extern "C" fn connect(
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    _device_comm: *mut c_void,
) -> Code {
    // SAFETY: The caller upholds this function's safety contract.
    call(|| unsafe { go_on_connecting(Context::new(None), true, device, handle, comm) })
}

pub(crate) unsafe extern "C" fn connect_v10(
    device: c_int,
    config: *const CommConfig,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    _device_comm: *mut c_void,
) -> Code {
    call(|| {
        // SAFETY: NCCL promises that `config` is null or points to a configuration.
        let context = Context::new(unsafe { config.as_ref() });
        // SAFETY: The caller upholds this function's safety contract.
        unsafe { go_on_connecting(context, true, device, handle, comm) }
    })
}

/// `connect` since v11.
pub(crate) unsafe extern "C" fn connect_v11(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    _device_comm: *mut c_void,
) -> Code {
    // SAFETY: The caller upholds this function's safety contract.
    call(|| unsafe { go_on_connecting(Context::from_ptr(context)?, true, device, handle, comm) })
}

/// # Safety
/// The caller upholds NCCL's contract of `connect`.
unsafe fn go_on_connecting(
    context: Context,
    truncate: bool,
    number: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> Outcome {
    if handle.is_null() || comm.is_null() {
        return Err(null("connect: handle or comm"));
    }
    let bytes = handle.cast::<[u8; HANDLE_BYTES]>();
    // SAFETY: NCCL promises a handle and room for a comm.
    let mut handle = unsafe {
        comm.write(ptr::null_mut());
        bytes.read_unaligned()
    };
    let (attempt, trying) = match stage(&handle).and_then(|n| Some((n, ATTEMPTS.get(n)?))) {
        Some(there) => there,
        None => {
            let host = host::get()?;
            let device = host.device(number)?.open(&host.settings)?;
            let settings = context.apply(&host.settings)?.truncate(truncate);
            let to = Handle::from_bytes(handle).map_err(|error| failed(&error.into()))?;
            let connecting = SendComm::connect(&device, &to, &settings);
            let connecting = connecting.map_err(|error| failed(&error))?;
            let limit = GIVEN_UP_AFTER.min(2 * settings.connect_within());
            ATTEMPTS.remove_all(|attempt| {
                attempt.try_lock().is_ok_and(|trying| trying.called.elapsed() > limit)
            });
            let (called, told) = (Instant::now(), TELL_AFTER);
            let peer = to.addr(settings.wire()).map_err(misused)?;
            let trying = Trying { connecting, number, device, peer, begun: called, called, told };
            let trying = Arc::new(Mutex::new(trying));
            let attempt = ATTEMPTS.put(|_| Arc::clone(&trying));
            set_stage(&mut handle, Some(attempt));
            (attempt, trying)
        }
    };
    let mut trying = trying.lock().unwrap_or_else(PoisonError::into_inner);
    trying.called = Instant::now();
    let polled = trying.connecting.poll_raw();
    if !matches!(polled, Ok(None)) {
        ATTEMPTS.remove(attempt);
        set_stage(&mut handle, None);
    } else if trying.begun.elapsed() >= trying.told {
        trying.told *= 2;
        let (device, seconds) = (&trying.device.info().name, trying.begun.elapsed().as_secs());
        log::warn!(
            "connect: {device} has waited for {} for {seconds} s: the rank there may not have called `accept` yet, \
             as NCCL waits for ranks that come late, or TCP does not reach it (NCCL_DEBUG=INFO)",
            trying.peer
        );
    }
    // SAFETY: NCCL promises that the handle is writable.
    unsafe { bytes.write_unaligned(handle) };
    // The connection logged the error where it occurred.
    if let Some(end) = polled.map_err(|error| Failed(code(&error)))? {
        let made = put_send(end, (trying.number, &trying.device))?;
        // SAFETY: NCCL promises that `comm` has room for a comm.
        unsafe { comm.write(made) };
    }
    Ok(())
}

/// `closeListen`.
pub(crate) unsafe extern "C" fn close_listen(comm: *mut c_void) -> Code {
    call(|| {
        if comm.is_null() {
            return Ok(());
        }
        let listening = LISTENERS.remove(Number::from_ptr(comm));
        drop(listening.ok_or_else(|| misused("closeListen: not a listening comm"))?);
        Ok(())
    })
}

/// Drops all connection attempts and listening comms. NCCL forgets those of a communicator that it aborts.
pub(crate) fn abandon() {
    ATTEMPTS.clear();
    LISTENERS.clear();
}

/// Offset of the connection's state in a handle: NCCL passes the same bytes to each call of `connect`.
/// The state starts with a mark of this process, because NCCL copies handles between processes.
const STAGE: usize = HANDLE_BYTES - 16;

fn mark() -> [u8; 8] {
    static MARK: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(STAGE) | 1);
    MARK.to_ne_bytes()
}

fn stage(handle: &[u8; HANDLE_BYTES]) -> Option<Number> {
    let (marked, number) = handle[STAGE..].split_at(8);
    let number = u64::from_ne_bytes(number.try_into().ok()?);
    (marked == mark()).then_some(Number::from_bits(number))
}

fn set_stage(handle: &mut [u8; HANDLE_BYTES], number: Option<Number>) {
    let (marked, to) = handle[STAGE..].split_at_mut(8);
    marked.copy_from_slice(&number.map_or([0; 8], |_| mark()));
    to.copy_from_slice(&number.map_or(0, Number::bits).to_ne_bytes());
}
