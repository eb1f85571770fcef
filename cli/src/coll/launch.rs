//! The processes of the ranks.

use std::env::VarError;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, io, process, thread};

use invar::{Communicator, Hub, Launch, Settings, UniqueId};
use invar_linux::processors;
use invar_linux::proxy::DumpOnSignal;
use rustix::thread::sched_setaffinity;

use super::{Args, SECRET, measure, options};
use crate::failure::Failure;
use crate::logger::tell;
use crate::output::Outputs;
use crate::parent::{ChildProcess, await_children, die_with};
use crate::resolved;

/// Time that a rank may go on after another has failed. The rank hears of the failure in that time.
const END_WITHIN: Duration = Duration::from_secs(20);
/// Time between two looks at the ranks.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Starts every rank on this host, and waits for all of them.
pub(super) fn all(args: &Args, settings: &Settings, nranks: u32) -> Result<ExitCode, Failure> {
    let failed = |error| Failure::io("starting the ranks", &error);
    await_children()?;
    // Rank 0 needs this to work. Check it before the other ranks wait for a rank 0 that cannot.
    drop(Outputs::open(args.json.as_deref())?);
    let secret = secret()?.map_or_else(made_up, Ok).map_err(failed)?;
    // On loopback, of which a host may have one family only.
    let on = |ip: IpAddr| hub(SocketAddr::new(ip, 0), nranks, &secret, settings);
    let hub = on(Ipv4Addr::LOCALHOST.into())
        .or_else(|failure| on(Ipv6Addr::LOCALHOST.into()).map_err(|_| failure))?;
    let _on_signal = settings.dump_signal().map(ranks_are_children).transpose().map_err(failed)?;
    let mut ranks = Ranks(Vec::new());
    for rank in 0..nranks {
        let mut command = Command::new(env::current_exe().map_err(failed)?);
        // Behind `coll`, and before a `--` that may be among the flags, which hold for all.
        let mut flags = env::args_os().skip(1);
        command.args(flags.next());
        command.args(["--rank", &rank.to_string(), "--root", &hub.id().addr().to_string()]);
        command.args(["--child-of", &process::id().to_string()]).env(SECRET, &secret);
        if args.ranks.is_none() {
            command.args(["--ranks", &nranks.to_string()]);
        }
        command.args(flags);
        command.stdin(Stdio::null());
        if rank > 0 {
            command.stdout(Stdio::null());
        }
        ranks.0.push(ChildProcess(command.spawn().map_err(failed)?));
    }
    ranks.wait()
}

/// Runs this process as the rank that its flags name. Returns how many elements were wrong on all ranks.
pub(super) fn one(
    args: &Args,
    settings: &Settings,
    rank: u32,
    nranks: u32,
) -> Result<u64, Failure> {
    let started = args.child_of.map(die_with).transpose()?.is_some();
    if started {
        bind(rank);
    }
    let secret = match secret()? {
        Some(secret) => secret,
        None if rank == 0 => {
            let secret = made_up().map_err(|error| Failure::io("a random secret", &error))?;
            tell(format_args!("the other ranks need {SECRET}={secret}"));
            secret
        }
        None => {
            let text = format!("{SECRET} is not set: rank 0 prints one that lets this rank in");
            return Err(Failure::usage(text));
        }
    };
    let addr = resolved(args.root.as_deref().unwrap_or_default(), None)?[0];
    if addr.port() == 0 {
        return Err(Failure::usage(format_args!("--root {addr}: no rank can be told of port 0")));
    }
    // If another process started the ranks, that process has the hub.
    let _hub = match rank == 0 && !started {
        true => Some(hub(addr, nranks, &secret, settings)?),
        false => None,
    };
    let id = UniqueId::new(addr, &invar::secret_of(&secret));
    measured(args, settings, &id, rank, nranks)
}

/// Runs this process as a rank of a launcher's job. Returns how many elements were wrong on all ranks.
pub(super) fn launched(args: &Args, settings: &Settings, launch: &Launch) -> Result<u64, Failure> {
    let meeting = launch.meet(settings)?;
    if meeting.is_public && launch.rank == 0 {
        tell(format_args!(
            "{SECRET} is not set: whoever knows this {} job and reaches its port can join",
            launch.launcher
        ));
    }
    measured(args, settings, &meeting.id, launch.rank, launch.nranks)
}

fn measured(
    args: &Args,
    settings: &Settings,
    id: &UniqueId,
    rank: u32,
    nranks: u32,
) -> Result<u64, Failure> {
    let outputs = match rank {
        0 => Some(Outputs::open(args.json.as_deref())?),
        _ => None,
    };
    let communicator = Communicator::join(id, rank, nranks, settings)?;
    options::agree(&communicator, args)?;
    measure::run(&communicator, args, settings, outputs)
}

/// On the dump signal, prints how to send the signal to the ranks, which are processes of their own.
fn ranks_are_children(signal: u8) -> io::Result<DumpOnSignal> {
    let text = format!(
        "invar: each rank is a process of its own; to print the state of each: kill -{signal} $(pgrep -P {})\n",
        process::id()
    );
    DumpOnSignal::spawn(signal, move || text.clone(), io::stderr())
}

/// Binds this process and its threads to one processor, a different one for each rank. Otherwise Linux
/// may put ranks that wake each other on one processor for a while.
fn bind(rank: u32) {
    let each = processors::allowed();
    if !each.is_empty() {
        // On another processor the result is right too, and only slower.
        let _ = sched_setaffinity(None, &each[rank as usize % each.len()]);
    }
}

fn hub(addr: SocketAddr, ranks: u32, secret: &str, settings: &Settings) -> Result<Hub, Failure> {
    let secret = invar::secret_of(secret);
    let within = settings.connect_within();
    Ok(Hub::listen(addr, settings.tcp_ports(), ranks, Some(secret), within)?)
}

/// The secret word, if the user has set one.
fn secret() -> Result<Option<String>, Failure> {
    match env::var(SECRET) {
        Ok(secret) => Ok(Some(secret).filter(|secret| !secret.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => {
            Err(Failure::usage(format_args!("{SECRET}: must be text in UTF-8")))
        }
    }
}

fn made_up() -> io::Result<String> {
    let bytes: [u8; 16] = invar_linux::random::random()?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

/// The processes of the ranks.
struct Ranks(Vec<ChildProcess>);

impl Ranks {
    /// Waits for all processes, reports a rank that was killed, and returns the worst status.
    fn wait(&mut self) -> Result<ExitCode, Failure> {
        let mut ended: Vec<Option<ExitStatus>> = vec![None; self.0.len()];
        let mut first_bad: Option<Instant> = None;
        loop {
            for (child, ended) in self.0.iter_mut().zip(&mut ended) {
                if ended.is_none() {
                    let status = child.0.try_wait();
                    *ended = status.map_err(|error| Failure::io("waiting for a rank", &error))?;
                    if ended.is_some_and(|status| !status.success()) {
                        first_bad.get_or_insert_with(Instant::now);
                    }
                }
            }
            if ended.iter().all(Option::is_some) {
                break;
            }
            if first_bad.is_some_and(|since| since.elapsed() >= END_WITHIN) {
                return Err(Failure::new("some ranks did not end after others had failed"));
            }
            thread::sleep(LOOK_EVERY);
        }
        let killed = ended.iter().flatten().enumerate();
        let mut killed = killed.filter_map(|(rank, status)| Some((rank, status.signal()?)));
        if let Some((rank, signal)) = killed.next() {
            return Err(Failure::new(format_args!("rank {rank} was killed by signal {signal}")));
        }
        let worst = ended.iter().flatten().filter_map(ExitStatus::code).max().unwrap_or(0);
        Ok(ExitCode::from(u8::try_from(worst).unwrap_or(u8::MAX)))
    }
}
