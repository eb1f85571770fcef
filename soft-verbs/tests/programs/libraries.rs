//! Communication libraries that are not ours run on the library: UCX, Open MPI and gloo.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use invar_testkit::skip::{PROGRAMS, skip};
use invar_testkit::unused;
use invar_testkit::wait::watch;

use super::{Run, command, is_installed, listens, loopback};

#[test]
fn ucx_moves_data_over_reliable_connections_and_over_datagrams() {
    if !is_installed("ucx_perftest", "ucx-utils") {
        return;
    }
    let (ok, text) = Run::start(command("ucx_info", &["-d"])).outcome();
    assert!(ok && text.contains("rc_verbs") && text.contains("ud_verbs"), "{text}");
    let cases: [(&str, &[&str]); 9] = [
        ("rc_verbs,ud_verbs", &["-t", "tag_lat"]),
        ("rc_verbs,ud_verbs", &["-t", "tag_lat", "-E", "sleep"]),
        ("rc_verbs,ud_verbs", &["-t", "tag_bw", "-s", "300000", "-n", "50"]),
        ("rc_verbs,ud_verbs", &["-t", "ucp_put_lat"]),
        ("rc_verbs,ud_verbs", &["-t", "ucp_get", "-s", "300000", "-n", "50"]),
        ("rc_verbs,ud_verbs", &["-t", "ucp_fadd"]),
        ("ud_verbs", &["-t", "tag_lat"]),
        ("ud_verbs", &["-t", "tag_lat", "-E", "sleep"]),
        ("ud_verbs", &["-t", "tag_bw", "-s", "20000"]),
    ];
    let device = format!("{}:1", loopback());
    for (transports, arguments) in cases {
        let port = unused::address().port().to_string();
        let start = |arguments: &[&str]| {
            let mut end = command("ucx_perftest", &[&["-p", &port], arguments].concat());
            end.envs([("UCX_TLS", transports), ("UCX_NET_DEVICES", &device)]);
            Run::start(end)
        };
        let mut server = start(&[]);
        let hex = format!("{:04X}", port.parse::<u16>().unwrap());
        watch("the server to listen", || server.0.try_wait().unwrap().is_some() || listens(&hex));
        let client = start(&[&["127.0.0.1", "-n", "500", "-s", "8"], arguments].concat());
        let [(client_ok, client), (server_ok, server)] = [client.outcome(), server.outcome()];
        let both = format!("{transports} {arguments:?}\nclient: {client}\nserver: {server}");
        assert!(client_ok && server_ok && client.contains("Final:"), "{both}");
    }
}

#[test]
fn open_mpi_sums_and_sends_over_ucx() {
    if !is_installed("mpicc.openmpi", "libopenmpi-dev")
        || !is_installed("mpirun.openmpi", "openmpi-bin")
    {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mpi.c");
    let mut mpicc = Command::new("mpicc.openmpi");
    let built = mpicc.args(["-Wall", "-Werror", "-o"]).arg(&program).arg(source).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    for transports in ["rc_verbs,ud_verbs,self", "ud_verbs,self"] {
        let mut mpirun = command(
            "mpirun.openmpi",
            // Only UCX may move data.
            &["--allow-run-as-root", "--oversubscribe", "-n", "4", "--mca", "pml", "ucx"],
        );
        let device = format!("{}:1", loopback());
        mpirun.arg(&program).envs([("UCX_TLS", transports), ("UCX_NET_DEVICES", &device)]);
        let (ok, text) = Run::start(mpirun).outcome();
        assert!(ok && text.contains("all right on 4 ranks"), "{transports}: {text}");
    }
}

#[test]
fn gloo_sums_and_gathers_over_its_transport_ibverbs() {
    if !Path::new("/usr/include/gloo/transport/ibverbs/device.h").exists() {
        return skip(PROGRAMS, "needs Debian's libgloo-dev");
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gloo.cc");
    let mut cc = Command::new("c++");
    cc.args(["-std=c++17", "-Wall", "-Werror", "-o"]).arg(&program).arg(source);
    let built = cc.args(["-lgloo", "-libverbs", "-pthread"]).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let device = loopback();
    for ranks in [2, 4] {
        let store = folder.path().join(format!("store-{ranks}"));
        fs::create_dir(&store).unwrap();
        let start = |rank: usize| {
            let arguments =
                [&device, store.to_str().unwrap(), &rank.to_string(), &ranks.to_string()];
            let mut rank = command(&program, &arguments);
            rank.stdin(Stdio::piped());
            Run::start(rank)
        };
        let mut started: Vec<Run> = (0..ranks).map(start).collect();
        // A rank ends when its standard input does, and all must have got this far before one ends.
        let first_line = |run: &mut Run| {
            let mut line = String::new();
            BufReader::new(run.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
            line
        };
        let lines: Vec<String> = started.iter_mut().map(first_line).collect();
        for (mut run, line) in started.into_iter().zip(lines) {
            drop(run.0.stdin.take());
            let (ok, text) = run.outcome();
            assert!(ok && line == format!("all right on {ranks} ranks\n"), "{line}{text}");
        }
    }
}
