//! Connections and collectives as futures, on several executors.

#![allow(clippy::print_stdout, reason = "a test that fails shows the executor")]

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use invar::{
    Device, DeviceKind, Error, Listener, MemoryRegion, RecvComm, RedOp, SendComm, Settings,
};
use invar_testkit::library;
use invar_testkit::pattern::pattern;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const BYTES: usize = 100_000;
const TAG: u32 = 3;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a future on an executor, which may run it on threads of its own.
type Executor = fn(&mut dyn FnMut() -> Wanted);
/// A future of a test.
type Wanted = Pin<Box<dyn Future<Output = ()> + Send>>;

const EXECUTORS: [(&str, Executor); 4] = [
    ("tokio", |make| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build()
            .unwrap()
            .block_on(tokio_task(make()));
    }),
    ("tokio on one thread", |make| {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(make());
    }),
    ("smol", |make| smol::block_on(smol::spawn(make()))),
    ("futures", |make| futures::executor::block_on(make())),
];

async fn tokio_task(wanted: Wanted) {
    tokio::spawn(wanted).await.unwrap();
}

/// Runs a test on every executor and every transport.
fn on_all(test: impl Fn(Device, Settings) -> Wanted) {
    for transport in ["socket", "soft"] {
        for (name, executor) in EXECUTORS {
            println!("{transport}, {name}");
            let (device, settings) = device(transport);
            executor(&mut || test(device.clone(), settings.clone()));
        }
    }
}

fn device(transport: &str) -> (Device, Settings) {
    let variables = [("INVAR_TRANSPORT", transport), ("NCCL_SOCKET_IFNAME", "lo")];
    let settings = library::settings(&variables);
    (library::first_device(&settings), settings)
}

/// Connects two ends, both as futures.
async fn connect(device: &Device, settings: &Settings) -> Result<(SendComm, RecvComm), Error> {
    let listener = Listener::bind(device, settings)?;
    let connecting = SendComm::connect(device, &listener.handle(), settings)?;
    let (send, recv) = futures::join!(connecting, listener.accept_async());
    Ok((send?, recv?))
}

#[test]
fn messages_arrive_on_every_executor() {
    on_all(|device, settings| {
        Box::pin(async move {
            let (mut send, mut recv) = connect(&device, &settings).await.unwrap();
            let [from, to] = [(); 2].map(|()| MemoryRegion::new(&device, BYTES).unwrap());
            for (message, len) in [0, 1, 8, BYTES, 4096].into_iter().enumerate() {
                from.write_at(0, &pattern(message, len)).unwrap();
                let (sent, received) = futures::join!(
                    send.send_async(&from, 0..len, TAG),
                    recv.recv_async(&to, 0..BYTES, TAG)
                );
                assert_eq!((sent.unwrap(), received.unwrap()), (len, len));
                assert_eq!(library::content(&to, len), pattern(message, len));
            }
        })
    });
}

#[test]
fn a_receive_that_waits_for_long_is_woken_by_the_message() {
    on_all(|device, settings| {
        Box::pin(async move {
            let (mut send, mut recv) = connect(&device, &settings).await.unwrap();
            let sender = thread::spawn({
                let device = device.clone();
                move || {
                    thread::sleep(Duration::from_millis(50));
                    let region = MemoryRegion::new(&device, 8).unwrap();
                    send.send(&region, 0..8, TAG, TIMEOUT).unwrap();
                }
            });
            let region = MemoryRegion::new(&device, 8).unwrap();
            assert_eq!(recv.recv_async(&region, 0..8, TAG).await.unwrap(), 8);
            sender.join().unwrap();
        })
    });
}

#[test]
fn a_wait_that_is_dropped_loses_no_message() {
    on_all(|device, settings| {
        Box::pin(async move {
            let (mut send, mut recv) = connect(&device, &settings).await.unwrap();
            let [from, to] = [(); 2].map(|()| MemoryRegion::new(&device, 8).unwrap());
            for message in 0..20 {
                let request = recv.irecv(&[(&to, 0..8, TAG)]).unwrap().unwrap();
                {
                    let mut waiting = pin!(recv.wait_async(&request));
                    let mut context = Context::from_waker(Waker::noop());
                    assert!(waiting.as_mut().poll(&mut context).is_pending());
                }
                from.write_at(0, &[message; 8]).unwrap();
                let (sent, received) =
                    futures::join!(send.send_async(&from, 0..8, TAG), recv.wait_async(&request));
                assert_eq!((sent.unwrap(), received.unwrap().sizes()), (8, &[8][..]));
                assert_eq!(library::content(&to, 8), [message; 8]);
            }
        })
    });
}

#[test]
fn a_send_waits_to_start_until_the_peer_has_posted_its_receive() {
    on_all(|device, settings| {
        Box::pin(async move {
            let (mut send, mut recv) = connect(&device, &settings).await.unwrap();
            let [from, to] = [(); 2].map(|()| MemoryRegion::new(&device, BYTES).unwrap());
            for message in 0..4 {
                from.write_at(0, &pattern(message, BYTES)).unwrap();
                // Over TCP a message may start before its receive.
                if device.info().kind != DeviceKind::Socket {
                    let mut dropped = pin!(send.isend_async(&from, 0..8, TAG));
                    let mut context = Context::from_waker(Waker::noop());
                    assert!(dropped.as_mut().poll(&mut context).is_pending());
                }
                let posts = async {
                    let request = recv.irecv_async(&[(&to, 0..BYTES, TAG)]).await?;
                    recv.wait_async(&request).await
                };
                let sends = async {
                    let request = send.isend_async(&from, 0..BYTES, TAG).await?;
                    send.wait_async(&request).await
                };
                let (sent, received) = futures::join!(sends, posts);
                assert_eq!((sent.unwrap(), received.unwrap().sizes()), (BYTES, &[BYTES][..]));
                assert_eq!(library::content(&to, BYTES), pattern(message, BYTES));
            }
        })
    });
}

/// Polls both ends of a connection this often, unless one of them is connected before, and drops them.
fn give_up_after(polls: usize, device: &Device, listener: &Listener, settings: &Settings) {
    let mut connecting = pin!(SendComm::connect(device, &listener.handle(), settings).unwrap());
    let mut accepting = pin!(listener.accept_async());
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..polls {
        if connecting.as_mut().poll(&mut context).is_ready()
            || accepting.as_mut().poll(&mut context).is_ready()
        {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_connection_that_is_given_up_half_way_leaves_the_listener_to_others() {
    on_all(|device, settings| {
        Box::pin(async move {
            let listener = Listener::bind(&device, &settings).unwrap();
            for polls in 0..12 {
                give_up_after(polls, &device, &listener, &settings);
                let connecting = SendComm::connect(&device, &listener.handle(), &settings).unwrap();
                // The listener may meet the ends of peers that are gone.
                let accepting = async {
                    loop {
                        let mut recv = listener.accept_async().await.unwrap();
                        let region = MemoryRegion::new(recv.device(), 8).unwrap();
                        if recv.recv_async(&region, 0..8, TAG).await.is_ok() {
                            break;
                        }
                    }
                };
                let sending = async {
                    let mut send = connecting.await.unwrap();
                    let region = MemoryRegion::new(send.device(), 8).unwrap();
                    send.send_async(&region, 0..8, TAG).await.unwrap();
                    send
                };
                futures::join!(sending, accepting);
            }
        })
    });
}

/// A comm has 256 places for requests. Futures that were dropped must not keep them.
#[test]
fn receives_and_sends_that_are_dropped_leave_room_for_others() {
    for transport in ["socket", "soft"] {
        let (device, settings) = device(transport);
        futures::executor::block_on(async {
            let (mut send, mut recv) = connect(&device, &settings).await.unwrap();
            let [from, to] = [(); 2].map(|()| MemoryRegion::new(&device, 8).unwrap());
            let mut context = Context::from_waker(Waker::noop());
            for _ in 0..600 {
                {
                    let mut receiving = pin!(recv.recv_async(&to, 0..8, TAG));
                    assert!(receiving.as_mut().poll(&mut context).is_pending());
                }
                // This message ends in the receive that was dropped.
                send.send_async(&from, 0..8, TAG).await.unwrap();
            }
            for _ in 0..600 {
                let mut receiving = pin!(recv.recv_async(&to, 0..8, TAG));
                while receiving.as_mut().poll(&mut context).is_pending() {
                    // The send may have begun or not when it is dropped.
                    let mut sending = pin!(send.send_async(&from, 0..8, TAG));
                    let _ = sending.as_mut().poll(&mut context);
                }
            }
        });
    }
}

#[test]
fn a_lost_connection_ends_a_receive_that_waits() {
    on_all(|device, settings| {
        Box::pin(async move {
            let (send, mut recv) = connect(&device, &settings).await.unwrap();
            let closes = thread::spawn(move || {
                thread::sleep(Duration::from_millis(50));
                drop(send);
            });
            let region = MemoryRegion::new(&device, 8).unwrap();
            let start = Instant::now();
            let error = recv.recv_async(&region, 0..8, TAG).await.unwrap_err();
            assert!(error.is_connection_lost(), "{error}");
            assert!(start.elapsed() < TIMEOUT);
            closes.join().unwrap();
        })
    });
}

#[test]
fn started_collectives_are_futures() {
    for (name, executor) in EXECUTORS {
        println!("{name}");
        library::two_ranks(&library::settings(&[]), |ranks| {
            let data = vec![ranks.rank() + 1; 1000];
            let mut sum = Some(ranks.start_all_reduce(data, RedOp::Sum).unwrap());
            executor(&mut || {
                let sum = sum.take().unwrap();
                Box::pin(async move { assert_eq!(sum.await.unwrap(), vec![3; 1000]) })
            });
        });
    }
}

#[test]
fn an_event_loop_hears_of_messages_by_a_descriptor() {
    for transport in ["socket", "soft"] {
        let (device, settings) = device(transport);
        let listener = Listener::bind(&device, &settings).unwrap();
        let (mut send, mut recv) = library::connect(&device, &listener, &settings);
        let [from, to] = [(); 2].map(|()| MemoryRegion::new(&device, 8).unwrap());
        for _ in 0..20 {
            let request = recv.irecv(&[(&to, 0..8, TAG)]).unwrap().unwrap();
            let sender = thread::scope(|scope| {
                let sender = scope.spawn(|| send.send(&from, 0..8, TAG, TIMEOUT).unwrap());
                loop {
                    let descriptor = recv.arm().unwrap().try_clone_to_owned().unwrap();
                    if recv.test(&request).unwrap().is_some() {
                        break;
                    }
                    let mut fds = [PollFd::new(&descriptor, PollFlags::IN)];
                    let long = Timespec { tv_sec: 60, tv_nsec: 0 };
                    assert_eq!(poll(&mut fds, Some(&long)), Ok(1), "{transport}");
                }
                sender.join().unwrap()
            });
            assert_eq!(sender, 8);
        }
    }
}
