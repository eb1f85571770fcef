//! Both ends run in processes of their own, as in the benchmark.

use std::process::Command;

use invar_testkit::shell;

#[test]
fn two_processes_move_messages_both_ways() {
    for (layout, work, size) in
        [("0x1", "stream", 100_000), ("0x1", "pingpong", 8), ("2x2", "stream", 500_000)]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bench_socket"));
        let run = shell::clean(&mut command)
            .args([layout, work, &size.to_string(), "64", "8"])
            .output()
            .unwrap();
        let (out, err) =
            (String::from_utf8(run.stdout).unwrap(), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success(), "{layout} {work}: {err}");
        assert!(out.trim().parse::<f64>().is_ok_and(|taken| taken > 0.0), "{out}");
    }
}
