//! `invar devices`.

use std::fs;
use std::path::Path;

use invar_testkit::fake_cuda::FakeCuda;
use invar_testkit::sysfs::Tree;

use crate::*;

/// `invar ARGS` with the stand-ins.
fn run_with(fake: &FakeCuda, args: &[&str]) -> Outcome {
    let mut command = invar(args);
    let _installed = fake.give_to(&mut command);
    Run::start(&mut command).wait()
}

#[test]
fn devices_are_listed_with_loopback_as_the_last() {
    let outcome = run(&["devices", "--json"]);
    let devices = json(&outcome.ok().stdout);
    let devices = devices.as_array().unwrap();
    let last = devices.last().expect("loopback at least");
    assert_eq!(last["kind"], "soft");
    assert_eq!(last["netdev"], "lo");
    assert_eq!((&last["mtu"], &last["path_mtu"]), (&8128.into(), &4096.into()));
    assert_eq!(last["state"], "active");
    assert!(last["udp_port"].is_null());
    let soft = devices.iter().filter(|device| device["kind"] == "soft");
    for (i, device) in soft.enumerate() {
        assert_eq!(device["name"], format!("soft{i}"));
    }
    let table = run(&["devices"]);
    let lines: Vec<&str> = table.ok().stdout.lines().collect();
    assert!(lines[0].starts_with("name "), "{}", lines[0]);
    assert!(lines[devices.len()].contains(" lo "), "{}", table.stdout);
}

#[test]
fn a_list_chooses_the_software_nics_and_their_order() {
    let soft = |list: &str| run_in(&[("INVAR_SOFT_DEVICES", list)], &["devices", "--json"]);
    let names = |list: &str| {
        let devices = json(&soft(list).ok().stdout);
        let soft = devices.as_array().unwrap().iter().filter(|device| device["kind"] == "soft");
        soft.map(|device| device["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let mut all = names("");
    assert_eq!(names("lo"), [all.last().unwrap().as_str()]);
    all.reverse();
    assert_eq!(names(&all.join(",")), all);
    let outcome = soft("nowhere0");
    outcome.ended(USAGE, "invar: INVAR_SOFT_DEVICES: nowhere0 is none of the devices soft0 (");
}

#[test]
fn the_mtu_of_a_device_is_the_one_that_is_measured_with() {
    let perf = json(&run(&["perf", "-e", "8", "-n", "2", "--json", "-"]).ok().stdout);
    for (wire, mtu) in [("invar", perf["path_mtu"].as_u64()), ("nccl-2.14", Some(4096))] {
        let outcome = run_in(&[("INVAR_WIRE", wire)], &["devices", "--json"]);
        let devices = json(&outcome.ok().stdout);
        assert_eq!(devices.as_array().unwrap().last().unwrap()["mtu"].as_u64(), mtu, "{wire}");
    }
    let outcome = run_in(&[("INVAR_LONG_MTU", "0")], &["devices", "--json"]);
    let devices = json(&outcome.ok().stdout);
    let devices = devices.as_array().unwrap();
    assert_eq!(devices.last().unwrap()["mtu"], 4096);
    assert!(devices.iter().all(|device| device["mtu"].is_null() == (device["kind"] == "socket")));
}

#[test]
fn each_device_says_what_it_is_and_how_much_it_can_do() {
    let fake = FakeCuda::new().with_null_verbs().set("NULL_VERBS_LINK", "ib");
    let outcome = run_with(&fake, &["devices", "--json"]);
    let devices = json(&outcome.ok().stdout);
    let devices = devices.as_array().unwrap();
    let shown = |device: &serde_json::Value| {
        let numbers = ["card_port", "qps_max", "mtu", "recvs_max"];
        let names = [["link_layer", "guid", "relaxed_ordering"].as_slice(), &numbers].concat();
        names.iter().map(|name| device[name].to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(shown(&devices[0]), r#""InfiniBand" "6e756c6c00000000" true 1 1048576 4096 8"#);
    assert_eq!(shown(devices.last().unwrap()), r#""Ethernet" null false 1 null 8128 8"#);
    let table = run_with(&fake, &["devices"]);
    let lines: Vec<&str> = table.ok().stdout.lines().collect();
    let column = lines[0].find("link layer").expect("a column");
    assert!(lines[1][column..].starts_with("InfiniBand "), "{}", table.stdout);
    assert!(lines[devices.len()][column..].starts_with("Ethernet "), "{}", table.stdout);
}

#[test]
fn each_device_says_how_it_gets_at_each_gpu() {
    let fake = FakeCuda::new().set("FAKE_CUDA_GPUS", "0000:3D:00.0,0000:86:00.0");
    let outcome = run_with(&fake, &["devices", "--json"]);
    let devices = json(&outcome.ok().stdout);
    let path = "staging: the NIC is software and reaches host memory only";
    let flush = "no flush: the driver's copies are seen by what follows them";
    for device in devices.as_array().unwrap().iter().filter(|device| device["kind"] == "soft") {
        let [first, second] = &device["gpus"].as_array().unwrap()[..] else { panic!("{device}") };
        assert_eq!((&first["gpu"], &first["pci_bus_id"]), (&0.into(), &"0000:3d:00.0".into()));
        assert_eq!((&second["gpu"], &second["name"]), (&1.into(), &"Fake GPU 1".into()));
        assert_eq!((&first["path"], &first["flush"]), (&path.into(), &flush.into()));
    }
    let line = format!("soft0 and GPU 0 (Fake GPU 0, 0000:3d:00.0): {path}; {flush}");
    let table = run_with(&fake, &["devices"]);
    assert!(table.ok().stdout.lines().any(|shown| shown == line), "{}", table.stdout);
}

#[test]
fn an_rdma_device_says_by_which_way_it_reaches_a_gpu_and_why() {
    let sysfs = Tree::new("null0", "null1");
    let fake = FakeCuda::new().with_null_verbs().set("NULL_VERBS_DEVICES", "2");
    let fake = fake.set("INVAR_SYSFS", sysfs.root().display().to_string());
    let shown = |fake: &FakeCuda, dma_buf: &str| {
        let fake = fake.clone().set("INVAR_TRANSPORT", "ib").set("NULL_VERBS_DMA_BUF", dma_buf);
        let outcome = run_with(&fake, &["devices"]);
        let about = outcome.ok().stdout.lines().filter(|line| line.contains(" and GPU 0 "));
        about.filter(|line| line.starts_with("null")).map(str::to_owned).collect::<Vec<_>>()
    };
    let about = |device, way| format!("{device} and GPU 0 (Fake GPU 0, 0000:3d:00.0): {way}");
    let read = "flush by a READ: the GPU may see the NIC's writes too late";
    let copies = "no flush: the driver's copies are seen by what follows them";
    let far = "staging: GPU and NIC are SYS apart, beyond NCCL_NET_GDR_LEVEL=PXB";
    let near = format!("GPUDirect by DMA-BUF: GPU and NIC are PIX apart, and both have it; {read}");
    let far = about("null1", format!("{far}; {copies}"));
    assert_eq!(shown(&fake, "yes"), [about("null0", near), far.clone()]);
    let neither = "staging: the NIC's driver or the kernel registers no DMA-BUF, and \
                   nvidia-peermem is not loaded (modprobe nvidia-peermem)";
    let neither = about("null0", format!("{neither}; {copies}"));
    assert_eq!(shown(&fake, "EOPNOTSUPP"), [neither, far.clone()]);
    sysfs.file("module/nvidia_peermem/version", "550.54");
    let module = "GPUDirect by peer memory: GPU and NIC are PIX apart, nvidia-peermem 550.54 is \
                  loaded, the NIC's driver or the kernel registers no DMA-BUF";
    let module = about("null0", format!("{module}; {read}"));
    assert_eq!(shown(&fake, "EPROTONOSUPPORT"), [module, far]);
}

#[test]
fn a_link_of_any_generation_has_its_speed() {
    let speed = |variables: &[(&'static str, &str)]| {
        let mut fake = FakeCuda::new().with_null_verbs();
        for (name, value) in variables {
            fake = fake.set(name, *value);
        }
        let outcome = run_with(&fake, &["devices", "--json"]);
        json(&outcome.ok().stdout)[0]["speed_mbps"].as_u64()
    };
    let by_codes = ("NULL_VERBS_MBPS", "0");
    assert_eq!(speed(&[by_codes]), Some(200_000));
    assert_eq!(speed(&[by_codes, ("NULL_VERBS_ACTIVE_SPEED_EX", "256")]), Some(800_000));
    assert_eq!(speed(&[by_codes, ("NULL_VERBS_ACTIVE_SPEED_EX", "512")]), None);
    assert_eq!(speed(&[("NULL_VERBS_ACTIVE_SPEED_EX", "512")]), Some(200_000));
}

#[test]
fn a_name_that_is_the_beginning_of_a_longer_number_is_warned_of_where_it_takes_and_leaves_out() {
    let fake = FakeCuda::new().with_null_verbs().set("NULL_VERBS_DEVICES", "11");
    let run = |hca: &str| {
        let fake = fake.clone().set("INVAR_LOG", "warn").set("NCCL_IB_HCA", hca);
        let outcome = run_with(&fake, &["devices", "--json"]);
        let devices = json(&outcome.ok().stdout);
        let verbs = devices.as_array().unwrap().iter().filter(|device| device["kind"] == "ib");
        let warnings =
            outcome.stderr.lines().filter_map(|line| line.strip_prefix("invar: warn: INIT: "));
        (verbs.count(), warnings.map(str::to_owned).collect::<Vec<_>>())
    };
    let taken = "NCCL_IB_HCA: null1 also takes null10; =null1 is that one alone";
    assert_eq!(run("null1"), (2, vec![taken.to_owned()]));
    let left_out = "NCCL_IB_HCA: ^null1 also leaves out null10; ^=null1 is that one alone";
    assert_eq!(run("^null1"), (9, vec![left_out.to_owned()]));
    assert_eq!(run("=null1"), (1, vec![]));
    assert_eq!(run("^=null1"), (10, vec![]));
}

/// `invar ARGS` where libibverbs has so many devices, and the kernel those of `sysfs`.
fn with_verbs(args: &[&str], devices: &str, sysfs: &Tree, hca: &str) -> Outcome {
    let fake = FakeCuda::new().with_null_verbs().set("NULL_VERBS_DEVICES", devices);
    let fake = fake.set("INVAR_SYSFS", sysfs.root().display().to_string());
    run_with(&fake.set("NCCL_IB_HCA", hca), args)
}

#[test]
fn where_libibverbs_finds_none_of_the_kernels_devices_it_is_said_what_they_need() {
    let sysfs = Tree::new("mlx5_0", "mlx5_1");
    let outcome = with_verbs(&["devices"], "0", &sysfs, "");
    let why = match Path::new("/dev/infiniband").is_dir() {
        true => "libibverbs finds none: it may lack their driver",
        false => "there is no /dev/infiniband: a container needs --device=/dev/infiniband",
    };
    let why = format!("invar: no RDMA devices: the kernel has mlx5_0, mlx5_1, but {why}");
    assert!(outcome.ok().stderr.contains(&why), "{}", outcome.stderr);
    let outcome = with_verbs(&["devices"], "0", &Tree::empty(), "");
    assert!(outcome.ok().stderr.contains("invar: no RDMA devices: the kernel has none\n"));
}

#[test]
fn a_list_of_devices_that_are_not_there_is_refused_with_what_there_is() {
    let perf = ["perf", "-e", "8", "-n", "2"];
    let none = "NCCL_IB_HCA=mlx5_9: no RDMA devices: the kernel has none";
    let others = "NCCL_IB_HCA: mlx5_9 is none of the RDMA devices null0, null1";
    for (args, devices, line) in [
        (&["devices"][..], "0", none),
        (&perf, "0", none),
        (&["devices"], "2", others),
        (&perf, "2", others),
    ] {
        let outcome = with_verbs(args, devices, &Tree::empty(), "mlx5_9");
        outcome.ended(USAGE, &format!("invar: {line}\n"));
    }
    // A device of another transport need not exist, nor need devices that the list leaves out.
    let fake = FakeCuda::new().with_null_verbs().set("NULL_VERBS_DEVICES", "0");
    run_with(&fake.set("NCCL_IB_HCA", "mlx5_9").set("INVAR_TRANSPORT", "soft"), &perf).ok();
    let outcome = with_verbs(&["devices"], "2", &Tree::empty(), "^null");
    let says = "invar: NCCL_IB_HCA leaves out all RDMA devices: null0, null1\n";
    assert!(outcome.ok().stderr.contains(says), "{}", outcome.stderr);
}

#[test]
fn without_gpus_it_is_said_why_and_the_devices_are_listed() {
    let fake = FakeCuda::new().set("FAKE_CUDA_FAIL", "cuInit=100");
    let outcome = run_with(&fake, &["devices", "--json"]);
    let why = "invar: no GPUs: cuInit failed: CUDA_ERROR_NO_DEVICE (100)";
    assert!(outcome.ok().stderr.contains(why), "{}", outcome.stderr);
    assert!(!json(&outcome.stdout).as_array().unwrap().is_empty());
}

#[test]
fn without_libibverbs_one_line_says_so_where_devices_are_asked_for_and_perf_runs() {
    let directory = tempfile::tempdir().unwrap();
    // The loader takes it for the library, whatever this host has, and cannot load it.
    fs::write(directory.path().join("libibverbs.so.1"), "").unwrap();
    let run =
        |args: &[&str]| Run::start(invar(args).env("LD_LIBRARY_PATH", directory.path())).wait();
    let outcome = run(&["devices", "--json"]);
    let is_about_it = |line: &&str| line.contains("libibverbs");
    let lines: Vec<&str> = outcome.ok().stderr.lines().filter(is_about_it).collect();
    let [line] = lines[..] else { panic!("{}", outcome.stderr) };
    assert!(line.starts_with("invar: no RDMA devices: no libibverbs ("), "{line}");
    assert!(line.contains("too short"), "{line}");
    let devices = json(&outcome.stdout);
    assert!(devices.as_array().unwrap().iter().all(|device| device["kind"] != "ib"), "{devices}");
    let outcome = run(&["perf", "-e", "8", "-n", "2", "--json", "-"]);
    assert_eq!(json(&outcome.ok().stdout)["transport"], "soft");
    assert!(!outcome.stderr.contains("libibverbs"), "{}", outcome.stderr);
}
