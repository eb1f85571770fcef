use super::*;

#[track_caller]
fn assert_findings(path: &str, text: &str, lines: &[usize]) {
    let findings = check(Path::new(path), text);
    let found: Vec<usize> = findings.iter().map(|(line, _)| *line).collect();
    assert_eq!(found, lines, "{findings:?}");
}

#[test]
fn a_tcp_listener_of_its_own_is_found_in_the_product() {
    for text in [
        "use std::net::{TcpListener, TcpStream};",
        "let listener = TcpListener::bind(addr)?;",
        "let socket = Socket::new(domain, Type::STREAM, None)?;",
        "let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;",
        "unsafe { libc::listen(fd, 1) };",
        "rustix::net::listen(&socket, 1)?;",
        "let listener = OobListener::bind(addr, ports)?;",
    ] {
        for path in ["cli/src/perf/server.rs", "invar/src/connect.rs", "os-linux/src/ports.rs"] {
            assert_findings(path, &format!("// one\n{text}\n"), &[2]);
        }
        for path in [
            "tests/simulator/src/pipe.rs",
            "cli/tests/a.rs",
            "invar/src/a/tests.rs",
            "xtask/src/a.rs",
        ] {
            assert_findings(path, text, &[]);
        }
        assert_findings("os-linux/src/tcp.rs", text, &[]);
    }
}

#[test]
fn a_door_that_no_test_sends_strangers_to_is_found() {
    for text in [
        "let listener = AuthListener::bind(addr, ports, proof)?;",
        "let (listener, handle) = AuthListener::with_handle(addr)?;",
        "let listener = UnixListener::bind(path)?;",
        "let socket = UdpSocket::bind(addr)?;",
    ] {
        assert_findings("invar/src/new.rs", text, &[1]);
        assert_findings("tests/src/new.rs", text, &[]);
        assert_findings("os-linux/src/rendezvous/hub.rs", text, &[]);
    }
}

#[test]
fn the_table_of_doors_needs_the_files_and_tests_to_be_there() {
    let findings = check_doors(Path::new("/nowhere"));
    assert!(findings.len() > DOORS.len(), "{findings:?}");
}

#[test]
fn what_only_talks_of_listeners_is_none() {
    assert_findings("invar/src/a.rs", "/// A TcpListener.\nlet what = \"TcpListener\";\n", &[]);
    assert_findings("invar/src/a.rs", "let listener = Listener::bind(&device)?;\n", &[]);
    let unix = "let socket = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;\n";
    assert_findings("invar/src/a.rs", unix, &[]);
    let tests = "fn f() {}\n#[cfg(test)]\nmod tests {\n    use std::net::TcpListener;\n}\n";
    assert_findings("invar/src/a.rs", tests, &[]);
}
