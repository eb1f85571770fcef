//! The end that plays along.

use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use invar::{Listener, Settings};

use super::control::Control;
use super::link::Plan;
use super::message::{Kind, Ready, Reply, Request, Setup, slot_bytes};
use super::{Args, open_device};
use crate::failure::Failure;
use crate::parent::die_with;

/// A client that asks for nothing more is gone, or stopped.
const CLIENT_WITHIN: Duration = Duration::from_secs(60);
/// Between two looks at connections that come about.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// What stands before the address in the line that says where the server listens.
pub(super) const LISTENING: &str = "invar perf: listening at ";

pub(super) fn run(args: &Args, addr: SocketAddr, settings: &Settings) -> Result<(), Failure> {
    if let Some(parent) = args.child_of {
        die_with(parent)?;
    }
    if let Some(name) = &args.nic {
        super::named(name, settings)?;
    }
    let listener = bind(addr)?;
    let addr = listener.local_addr().map_err(|error| Failure::io("the listener", &error))?;
    let port = addr.port();
    writeln!(io::stdout(), "{LISTENING}{addr}; elsewhere: invar perf --connect HOST:{port}")
        .map_err(|error| Failure::io("saying where to connect", &error))?;
    loop {
        let caller = listener.accept();
        let (stream, peer) = caller.map_err(|error| Failure::io("accepting a client", &error))?;
        let mut control = Control::new(stream, peer)?;
        if let Err(failure) = control.greet() {
            // None of ours; the one that is may come yet.
            eprintln!("invar: {failure}");
            continue;
        }
        let result = serve(&mut control, args, settings);
        if let Err(failure) = &result {
            // A client that is gone does not hear it.
            let _ = control.send(&Reply::Failed { text: failure.to_string() });
        }
        match result {
            Err(failure) if args.keep => eprintln!("invar: {peer}: {failure}"),
            Ok(()) if args.keep => {}
            // The parent says it.
            Err(_) if args.child_of.is_some() => return Ok(()),
            result => return result,
        }
    }
}

/// Any address of this host includes those of IPv4, on a host that has no other too.
fn bind(addr: SocketAddr) -> Result<TcpListener, Failure> {
    let is_any_v6 = addr.is_ipv6() && addr.ip().is_unspecified();
    let listener = match TcpListener::bind(addr) {
        Err(error) if is_any_v6 && error.kind() != ErrorKind::AddrInUse => {
            TcpListener::bind(("0.0.0.0", addr.port()))
        }
        listener => listener,
    };
    listener.map_err(|error| Failure::io(format_args!("listening at {addr}"), &error))
}

/// One client, until it says goodbye.
fn serve(control: &mut Control, args: &Args, settings: &Settings) -> Result<(), Failure> {
    let Request::Setup(setup) = control.recv(CLIENT_WITHIN)? else {
        return Err(Failure::new("the client did not say what it wants"));
    };
    setup.check().map_err(Failure::new)?;
    let settings = adjusted(settings, &setup);
    let device = open_device(args.nic.as_deref(), control.local_ip()?, &settings)?;
    let listener = Listener::bind(&device, &settings)?;
    control.send(&Reply::Ready(Ready {
        handle: listener.handle(),
        nic: device.info().name.clone(),
        mtu: device.info().mtu.bytes(),
        requests_max: settings.requests_max(),
    }))?;
    let plan = Plan {
        device: &device,
        settings: &settings,
        listener: &listener,
        peer: setup.handle,
        outgoing_bytes: slot_bytes(setup.size_max),
        incoming_bytes: setup.region_bytes as usize,
        recvs: setup.recvs,
        seed: setup.seed,
    };
    let mut link = plan.connect(|| {
        // The client may be connected first, and ask for the first pass.
        if control.has_line(LOOK_EVERY)? {
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    })?;
    link.try_out()?;
    loop {
        match control.recv(CLIENT_WITHIN)? {
            Request::Pass(pass) => {
                setup.check_pass(&pass).map_err(Failure::new)?;
                let wrong = match pass.kind {
                    Kind::Check | Kind::Stream => link.receive(&pass)?,
                    Kind::PingPong => link.pong(&pass)?,
                };
                control.send(&Reply::Done { wrong })?;
            }
            Request::Bye => return Ok(()),
            Request::Setup(_) => return Err(Failure::new("the client says twice what it wants")),
        }
    }
}

/// What the client wants goes before what this end's environment says.
fn adjusted(settings: &Settings, setup: &Setup) -> Settings {
    let settings = settings.clone().qps(setup.qps);
    match setup.adaptive_routing {
        Some(on) => settings.adaptive_routing(on),
        None => settings,
    }
}
