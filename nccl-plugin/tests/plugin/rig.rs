//! Both ends of connections, driven by the calls of the function table.

pub(crate) use std::ffi::{c_int, c_void};
pub(crate) use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

pub(crate) use invar_testkit::wait::until;
pub(crate) use nccl_net_invar::abi::{Code, HANDLE_BYTES, PTR_HOST};
pub(crate) use nccl_net_invar::tables::ncclNetPlugin_v9 as net;
use nccl_net_invar::tables::ncclNetPlugin_v11 as v11;

use invar_testkit::pattern::pattern;
use invar_testkit::sysfs::Tree;
use invar_testkit::{child, shell};

use crate::TRANSPORT;

/// Speed of the loopback device in megabits per second.
pub(crate) const SPEED_MBPS: c_int = 25_000;

/// Starts the plugin, once for all tests of this process. Returns the context of a communicator that is
/// never finalized, so that no test ends the plugin for the others.
pub(crate) fn init() -> *mut c_void {
    static INIT: Once = Once::new();
    static CONTEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    INIT.call_once(|| {
        // Loopback reports no speed, so this tree does.
        let tree = Tree::empty();
        tree.file("class/net/lo/speed", &SPEED_MBPS.to_string());
        let own = tree.root().display().to_string();
        if !child::is_here() {
            // SAFETY: Every test calls this function first, so no other thread reads the environment
            // meanwhile.
            unsafe { shell::forget_settings() };
        }
        let rules = [
            ("INVAR_TRANSPORT", TRANSPORT),
            ("NCCL_SOCKET_IFNAME", "lo"),
            ("NCCL_COLLNET_ENABLE", "1"),
            ("NCCL_SHM_DISABLE", "1"),
            ("INVAR_SYSFS", &own),
        ];
        // A test with a process of its own may have its own settings.
        for (name, value) in rules.into_iter().filter(|(name, _)| std::env::var_os(name).is_none())
        {
            // SAFETY: Every test calls this function first, so no other thread reads the environment
            // meanwhile.
            unsafe { std::env::set_var(name, value) };
        }
        // SAFETY: The call passes no logger.
        assert_eq!(unsafe { (net.init)(None) }, Code::SUCCESS);
        let mut context = ptr::null_mut();
        // SAFETY: `context` has room for a context.
        let code = unsafe { (v11.init)(&mut context, 0, ptr::null(), None, None) };
        assert_eq!(code, Code::SUCCESS);
        CONTEXT.store(context, Ordering::Relaxed);
    });
    CONTEXT.load(Ordering::Relaxed)
}

/// A listening comm and its handle.
pub(crate) struct Listening {
    pub(crate) comm: *mut c_void,
    pub(crate) handle: [u8; HANDLE_BYTES],
}

impl Listening {
    pub(crate) fn new() -> Self {
        Self::on(0)
    }

    /// Listens on a device.
    pub(crate) fn on(device: c_int) -> Self {
        init();
        let (mut comm, mut handle) = (ptr::null_mut(), [0; HANDLE_BYTES]);
        // SAFETY: The call gives room for a handle and a comm.
        let code = unsafe { (net.listen)(device, handle.as_mut_ptr().cast(), &mut comm) };
        assert_eq!(code, Code::SUCCESS);
        assert!(!comm.is_null());
        Listening { comm, handle }
    }

    /// Calls `accept` once.
    pub(crate) fn accept(&self) -> Option<*mut c_void> {
        let mut comm = ptr::dangling_mut();
        // SAFETY: `comm` has room for a comm.
        let code = unsafe { (net.accept)(self.comm, &mut comm, ptr::null_mut()) };
        assert_eq!(code, Code::SUCCESS);
        (!comm.is_null()).then_some(comm)
    }

    /// Connects both ends.
    pub(crate) fn pair(
        &self,
        handle: &mut [u8; HANDLE_BYTES],
        connect: impl Fn(&mut [u8; HANDLE_BYTES]) -> Option<*mut c_void>,
    ) -> (*mut c_void, *mut c_void) {
        let (mut send, mut recv) = (None, None);
        until("connecting", || {
            send = send.or_else(|| connect(handle));
            recv = recv.or_else(|| self.accept());
            send.zip(recv)
        })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // SAFETY: Nobody uses the comm any more.
        assert_eq!(unsafe { (net.close_listen)(self.comm) }, Code::SUCCESS);
    }
}

/// Calls `connect` once; the handle keeps the state between calls.
pub(crate) fn connect(handle: &mut [u8; HANDLE_BYTES]) -> Option<*mut c_void> {
    connect_on(0, handle)
}

/// Calls `connect` of a device once.
pub(crate) fn connect_on(device: c_int, handle: &mut [u8; HANDLE_BYTES]) -> Option<*mut c_void> {
    let mut comm = ptr::dangling_mut();
    let handle = handle.as_mut_ptr().cast();
    // SAFETY: The handle is valid, and `comm` has room for a comm.
    let code = unsafe { (net.connect)(device, handle, &mut comm, ptr::null_mut()) };
    assert_eq!(code, Code::SUCCESS);
    (!comm.is_null()).then_some(comm)
}

/// Both ends of a connection, and memory registered with each. A test that closes an end itself leaves
/// null there.
pub(crate) struct Pair {
    pub(crate) send: *mut c_void,
    pub(crate) recv: *mut c_void,
    pub(crate) from: Vec<u8>,
    pub(crate) to: Vec<u8>,
    pub(crate) from_mr: *mut c_void,
    pub(crate) to_mr: *mut c_void,
}

impl Pair {
    /// Connects both ends; the sender's memory has a pattern, the receiver's is zero.
    pub(crate) fn new(bytes: usize) -> Self {
        Self::with(bytes, connect)
    }

    pub(crate) fn with(
        bytes: usize,
        connect: impl Fn(&mut [u8; HANDLE_BYTES]) -> Option<*mut c_void>,
    ) -> Self {
        Self::over(Listening::new(), bytes, connect)
    }

    /// Connects to a listening comm.
    pub(crate) fn over(
        listening: Listening,
        bytes: usize,
        connect: impl Fn(&mut [u8; HANDLE_BYTES]) -> Option<*mut c_void>,
    ) -> Self {
        let mut handle = listening.handle;
        let (send, recv) = listening.pair(&mut handle, connect);
        let from = pattern(0, bytes);
        let to = vec![0; bytes];
        let (from_mr, to_mr) = (reg(send, &from), reg(recv, &to));
        Pair { send, recv, from, to, from_mr, to_mr }
    }

    /// Calls `irecv` with these offsets, sizes and tags.
    pub(crate) fn irecv(&self, bufs: &[(usize, usize, c_int)]) -> (Code, *mut c_void) {
        let to = self.to.as_ptr().cast_mut();
        let mut data: Vec<_> = bufs.iter().map(|buf| to.wrapping_add(buf.0).cast()).collect();
        let mut sizes: Vec<_> = bufs.iter().map(|buf| buf.1).collect();
        let mut tags: Vec<_> = bufs.iter().map(|buf| buf.2).collect();
        let mut mrs = vec![self.to_mr; bufs.len()];
        let mut request = ptr::dangling_mut();
        // SAFETY: Each array has `bufs.len()` entries, within registered memory.
        let code = unsafe {
            (net.irecv)(
                self.recv,
                bufs.len() as c_int,
                data.as_mut_ptr(),
                sizes.as_mut_ptr(),
                tags.as_mut_ptr(),
                mrs.as_mut_ptr(),
                &mut request,
            )
        };
        (code, request)
    }

    /// Calls `isend` once.
    pub(crate) fn isend(&self, offset: usize, size: usize, tag: c_int) -> (Code, *mut c_void) {
        let data = self.from.as_ptr().wrapping_add(offset).cast_mut().cast();
        let mut request = ptr::dangling_mut();
        // SAFETY: The memory is registered.
        let code = unsafe { (net.isend)(self.send, data, size, tag, self.from_mr, &mut request) };
        (code, request)
    }

    /// Posts a receive, which must succeed.
    pub(crate) fn post(&self, bufs: &[(usize, usize, c_int)]) -> *mut c_void {
        let (code, request) = self.irecv(bufs);
        assert_eq!(code, Code::SUCCESS);
        assert!(!request.is_null(), "a receive finds no request");
        request
    }

    /// Sends a message once the receiver has posted its buffer.
    pub(crate) fn send(&self, offset: usize, size: usize, tag: c_int) -> *mut c_void {
        until("a receive", || {
            let (code, request) = self.isend(offset, size, tag);
            assert_eq!(code, Code::SUCCESS);
            (!request.is_null()).then_some(request)
        })
    }

    /// Closes the sending end, unless it is closed already.
    pub(crate) fn close_send(&mut self) {
        if !self.send.is_null() {
            dereg(self.send, &mut self.from_mr);
            // SAFETY: Nobody uses the comm any more.
            let code =
                unsafe { (net.close_send)(std::mem::replace(&mut self.send, ptr::null_mut())) };
            assert_eq!(code, Code::SUCCESS);
        }
    }

    /// Closes the receiving end, unless it is closed already.
    pub(crate) fn close_recv(&mut self) {
        if !self.recv.is_null() {
            dereg(self.recv, &mut self.to_mr);
            // SAFETY: Nobody uses the comm any more.
            let code =
                unsafe { (net.close_recv)(std::mem::replace(&mut self.recv, ptr::null_mut())) };
            assert_eq!(code, Code::SUCCESS);
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.close_send();
        self.close_recv();
    }
}

/// Deregisters memory.
pub(crate) fn dereg(comm: *mut c_void, mr: &mut *mut c_void) {
    // SAFETY: No transfer uses the registration any more.
    let code = unsafe { (net.dereg_mr)(comm, std::mem::replace(mr, ptr::null_mut())) };
    assert_eq!(code, Code::SUCCESS);
}

/// Registers memory with the device of a comm.
pub(crate) fn reg(comm: *mut c_void, memory: &[u8]) -> *mut c_void {
    let mut mr = ptr::null_mut();
    let data = memory.as_ptr().cast_mut().cast();
    // SAFETY: The memory exists, and `mr` has room for a registration.
    let code = unsafe { (net.reg_mr)(comm, data, memory.len(), PTR_HOST, &mut mr) };
    assert_eq!(code, Code::SUCCESS);
    assert!(!mr.is_null());
    mr
}

/// Calls `test` once; returns the sizes if the request is done.
pub(crate) fn test(request: *mut c_void) -> Result<Option<[c_int; 8]>, Code> {
    let (mut done, mut sizes) = (-1, [-1; 8]);
    // SAFETY: The call gives room for the flag and the sizes.
    match unsafe { (net.test)(request, &mut done, sizes.as_mut_ptr()) } {
        Code::SUCCESS => Ok((done == 1).then_some(sizes)),
        code => Err(code),
    }
}

/// Waits until all requests are done. Tests them in turn, so they may finish in any order.
pub(crate) fn wait(requests: &[*mut c_void]) -> Vec<[c_int; 8]> {
    let mut sizes = vec![None; requests.len()];
    until("a request", || {
        for (request, sizes) in requests.iter().zip(&mut sizes) {
            if sizes.is_none() {
                *sizes = test(*request).unwrap();
            }
        }
        sizes.iter().copied().collect::<Option<Vec<_>>>()
    })
}
