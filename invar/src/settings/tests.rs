use std::path::Path;

use invar_core::auth::Secret;
use invar_core::device::PciDistance;
use invar_core::nic::LinkLayer;
use invar_core::param::{MetricsPlace, Subnet};
use invar_core::stall::FlightRecorder;
use invar_linux::tcp::Congestion;

use super::*;
use crate::Device;

fn from(set: &[(&str, &str)]) -> Result<Settings, Error> {
    Settings::from_lookup(|name| {
        set.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
    })
}

#[test]
fn the_environment_reaches_the_connection() {
    let set = [
        ("NCCL_IB_QPS_PER_CONNECTION", "4"),
        ("NCCL_IB_TIMEOUT", "14"),
        ("NCCL_IB_RETRY_CNT", "3"),
        ("NCCL_IB_TC", "0x60"),
        ("INVAR_FIFO_DEPTH", "32"),
        ("INVAR_CONNECT_TIMEOUT_MS", "1500"),
    ];
    let conn = from(&set).unwrap().for_port(LinkLayer::Ethernet);
    assert_eq!((conn.qps, conn.timeout, conn.retry_cnt), (4, 14, 3));
    assert_eq!((conn.traffic_class, conn.fifo_depth), (0x60, 32));
    assert_eq!(conn.timeout_ns, 1_500_000_000);
}

#[test]
fn what_the_program_says_goes_before_the_environment() {
    let settings = from(&[("NCCL_IB_QPS_PER_CONNECTION", "4")]).unwrap().qps(2);
    assert_eq!(settings.for_port(LinkLayer::Ethernet).qps, 2);
}

#[test]
fn a_value_that_cannot_be_is_named_with_what_is_allowed() {
    let error = from(&[("NCCL_IB_QPS_PER_CONNECTION", "129")]).unwrap_err();
    assert_eq!(error.to_string(), "NCCL_IB_QPS_PER_CONNECTION=129: must be a number from 1 to 128");
    assert_eq!(error.kind(), invar_core::error::ErrorKind::Usage);
}

#[test]
fn a_congestion_control_that_the_kernel_does_not_have_is_named() {
    let settings = from(&[("INVAR_SOCKET_CONGESTION", "nonesuch")]).unwrap();
    let error = settings.socket_congestion().unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("INVAR_SOCKET_CONGESTION=nonesuch: the kernel refuses"), "{text}");
    assert_eq!(error.kind(), invar_core::error::ErrorKind::Usage);
    assert_eq!(from(&[]).unwrap().socket_congestion().unwrap(), Congestion::default());
}

#[test]
fn data_goes_apart_from_its_immediate_only_where_the_network_routes_adaptively() {
    let threshold = |set: &[(&str, &str)], link_layer| {
        from(set).unwrap().for_port(link_layer).ar_threshold_bytes
    };
    let (ib, roce) = (LinkLayer::Infiniband, LinkLayer::Ethernet);
    assert_eq!(threshold(&[], roce), u32::MAX);
    assert_eq!(threshold(&[], ib), 8192);
    assert_eq!(threshold(&[("NCCL_IB_ADAPTIVE_ROUTING", "1")], roce), 8192);
    assert_eq!(threshold(&[("NCCL_IB_ADAPTIVE_ROUTING", "0")], ib), u32::MAX);
    assert_eq!(threshold(&[("INVAR_WIRE", "nccl-2.14")], roce), 8192);
}

#[test]
fn what_the_program_says_of_a_proxy_reaches_whoever_runs_it() {
    let trace = Path::new("/tmp/trace");
    let settings = Settings::default().proxy_batch(3).proxy_rounds(5).proxy_trace(trace);
    assert_eq!((settings.append_batch(), settings.append_every()), (3, 5));
    assert_eq!(settings.trace_file(), Some("/tmp/trace"));
}

/// Settings that a program has made, and for each of them the variable and value that it sets.
fn each_method() -> Vec<(Settings, &'static str, &'static str)> {
    let new = Settings::default;
    let ports = PortRange::parse("7-9").unwrap();
    vec![
        (new().rdma(false), "NCCL_IB_DISABLE", "1"),
        (new().rdma_devices("^mlx5_1:2"), "NCCL_IB_HCA", "^mlx5_1:2"),
        (new().gid_index(3), "NCCL_IB_GID_INDEX", "3"),
        (new().roce_version(RoceVersion::V1), "NCCL_IB_ROCE_VERSION_NUM", "1"),
        (new().gid_family(AddressFamily::Inet6), "NCCL_IB_ADDR_FAMILY", "AF_INET6"),
        (new().gid_subnet(Subnet::parse("fd00::/8").unwrap()), "NCCL_IB_ADDR_RANGE", "fd00::/8"),
        (new().ack_timeout(Duration::from_secs(1)), "NCCL_IB_TIMEOUT", "18"),
        (new().retry_count(3), "NCCL_IB_RETRY_CNT", "3"),
        (new().pkey_index(9), "NCCL_IB_PKEY", "9"),
        (new().inline_slots(true), "NCCL_IB_USE_INLINE", "1"),
        (new().service_level(5), "NCCL_IB_SL", "5"),
        (new().traffic_class(96), "NCCL_IB_TC", "96"),
        (new().qps(4), "NCCL_IB_QPS_PER_CONNECTION", "4"),
        (new().adaptive_routing_threshold(0), "NCCL_IB_AR_THRESHOLD", "0"),
        (new().adaptive_routing(true), "NCCL_IB_ADAPTIVE_ROUTING", "1"),
        (new().ece(false), "NCCL_IB_ECE_ENABLE", "0"),
        (new().merge_nics(false), "NCCL_IB_MERGE_NICS", "0"),
        (new().merge_vfs(false), "NCCL_IB_MERGE_VFS", "0"),
        (new().relaxed_ordering(RelaxedOrdering::Always), "NCCL_IB_PCI_RELAXED_ORDERING", "1"),
        (new().gpu_distance(PciDistance::Sys), "NCCL_NET_GDR_LEVEL", "SYS"),
        (new().dma_buf(false), "NCCL_DMABUF_ENABLE", "0"),
        (new().gpu_flush(false), "NCCL_GDR_FLUSH_DISABLE", "1"),
        (new().force_gpu_flush(true), "NCCL_NET_FORCE_FLUSH", "1"),
        (new().interfaces("eth0"), "NCCL_SOCKET_IFNAME", "eth0"),
        (new().comm_id("192.0.2.1:7000"), "NCCL_COMM_ID", "192.0.2.1:7000"),
        (new().address_family(AddressFamily::Inet), "NCCL_SOCKET_FAMILY", "AF_INET"),
        (new().socket_threads(2), "NCCL_SOCKET_NTHREADS", "2"),
        (new().sockets_per_thread(3), "NCCL_NSOCKS_PERTHREAD", "3"),
        (new().congestion_control("cubic"), "INVAR_SOCKET_CONGESTION", "cubic"),
        (new().shared_memory(false), "NCCL_SHM_DISABLE", "1"),
        (new().message_chunk_bytes(4096), "NCCL_CHUNK_SIZE", "4096"),
        (new().proxy_batch(3), "NCCL_PROXY_APPEND_BATCH_SIZE", "3"),
        (new().proxy_rounds(5), "NCCL_PROGRESS_APPENDOP_FREQ", "5"),
        (new().dump_on_signal(10), "NCCL_PROXY_DUMP_SIGNAL", "10"),
        (new().collnet(true), "NCCL_COLLNET_ENABLE", "1"),
        (new().use_wire(conn::Wire::Nccl214), "INVAR_WIRE", "nccl-2.14"),
        (new().fifo_depth(16), "INVAR_FIFO_DEPTH", "16"),
        (new().long_packets(false), "INVAR_LONG_MTU", "0"),
        (new().soft_devices("eth1,lo"), "INVAR_SOFT_DEVICES", "eth1,lo"),
        (new().soft_ports(ports), "INVAR_SOFT_PORT", "7-9"),
        (new().soft_auth(conn::PacketAuth::Always), "INVAR_SOFT_AUTH", "1"),
        (new().listen_ports(ports), "INVAR_PORT_RANGE", "7-9"),
        (new().connect_timeout(Duration::from_micros(1500)), "INVAR_CONNECT_TIMEOUT_MS", "2"),
        (new().recovery_timeout(Duration::ZERO), "INVAR_RECOVERY_TIMEOUT_MS", "0"),
        (new().suspect_after(Duration::ZERO), "INVAR_SUSPECT_AFTER_MS", "0"),
        (new().spin_for(Duration::from_millis(2)), "INVAR_SPIN_US", "2000"),
        (new().stall_after(Duration::from_secs(3)), "INVAR_STALL_MS", "3000"),
        (new().recorder(FlightRecorder::Messages), "INVAR_RECORDER", "2"),
        (new().metrics(MetricsPlace::Unix("/a")), "INVAR_METRICS", "unix:/a"),
        (new().proxy_trace(Path::new("/tmp/%r")), "INVAR_PROXY_TRACE", "/tmp/%r"),
        (new().collective_timeout(Duration::from_secs(2)), "INVAR_COLL_TIMEOUT_MS", "2000"),
        (new().coll_secret("a word"), "INVAR_COLL_SECRET", "********"),
        (new().staging_chunk_bytes(8192), "INVAR_STAGING_CHUNK_BYTES", "8192"),
        (new().staging_slots(2), "INVAR_STAGING_SLOTS", "2"),
        (new().staging_bytes(0), "INVAR_STAGING_BYTES", "0"),
        (new().sysfs(Path::new("/host/sys")), "INVAR_SYSFS", "/host/sys"),
        (new().use_transport(TransportChoice::Soft), "INVAR_TRANSPORT", "soft"),
        (new().rails("a+b,c+d"), "INVAR_RAILS", "a+b,c+d"),
        (new().log_up_to(LogLevel::Trace), "INVAR_LOG", "trace"),
        (new().log_as(LogFormat::Json), "INVAR_LOG_FORMAT", "json"),
        (new().nccl_debug(NcclDebug::Info), "NCCL_DEBUG", "INFO"),
        (new().nccl_debug_subsystems("NET"), "NCCL_DEBUG_SUBSYS", "NET"),
    ]
}

#[test]
fn a_program_can_set_every_variable_of_the_library() {
    let methods = each_method();
    for (settings, name, value) in &methods {
        settings.usable().unwrap();
        let changed = settings.in_force().into_iter().filter(|row| row.source != Source::Default);
        let changed: Vec<_> = changed.map(|row| (row.info.name, row.value, row.source)).collect();
        assert_eq!(changed, [(*name, (*value).to_owned(), Source::Program)]);
    }
    let rows = TABLE.iter();
    let (rows, set): (Vec<_>, Vec<_>) =
        (rows.map(|row| row.name).collect(), methods.iter().map(|(_, name, _)| *name).collect());
    assert_eq!(rows, set);
}

#[test]
fn what_only_a_program_can_say_outlasts_variables() {
    let settings = Settings::default()
        .truncate(true)
        .flush(true)
        .key(Secret::PUBLIC)
        .communicator_nic("soft0")
        .qps(3);
    assert!(settings.conn.truncate && settings.conn.key.is_some() && settings.conn.qps == 3);
    assert_eq!((settings.flush, settings.coll_nic.as_deref()), (Some(true), Some("soft0")));
}

#[test]
fn a_value_out_of_range_is_refused_when_the_settings_are_used() {
    let settings = Settings::default().qps(4).qps(200);
    let error = settings.usable().unwrap_err();
    assert!(error.to_string().starts_with("NCCL_IB_QPS_PER_CONNECTION=200: must be"), "{error}");
    assert!(Device::survey(&settings).is_err());
    settings.qps(2).usable().unwrap();
}

#[test]
fn a_time_without_an_acknowledge_is_the_next_that_devices_have() {
    let exponent = |time| Settings::default().ack_timeout(time).conn.timeout;
    let unit = Duration::from_nanos(4096);
    assert_eq!([exponent(Duration::ZERO), exponent(unit * 2)], [1, 1]);
    assert_eq!([exponent(unit * 2 + Duration::from_nanos(1)), exponent(unit * 4)], [2, 2]);
    assert_eq!([exponent(unit * (1 << 31)), exponent(Duration::MAX)], [31, 0]);
}

#[test]
fn a_value_says_where_it_comes_from_and_a_secret_is_not_shown() {
    let set = [("NCCL_IB_TC", "0x60"), ("INVAR_COLL_SECRET", "guess"), ("NCCL_IB_SL", "")];
    let rows = from(&set).unwrap().qps(2).in_force();
    let row = |name| rows.iter().find(|row| row.info.name == name).unwrap();
    let shown = |name| (row(name).value.as_str(), row(name).source);
    assert_eq!(shown("NCCL_IB_TC"), ("0x60", Source::Environment));
    assert_eq!(shown("NCCL_IB_SL"), ("0", Source::Default));
    assert_eq!(shown("NCCL_IB_QPS_PER_CONNECTION"), ("2", Source::Program));
    assert_eq!(shown("INVAR_COLL_SECRET"), ("********", Source::Environment));
    assert!(!format!("{:?}", from(&set)).contains("guess"));
}

#[test]
fn a_set_of_variables_is_read_as_the_environment_is() {
    let vars = |vars: &[(&str, &str)]| {
        let owned = vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Settings::from_vars(&owned.collect())
    };
    let set = [("INVAR_FIFO_DEPTH", "64"), ("NCCL_IB_TIMOUT", "22"), ("INVAR_EMPTY", "")];
    let mut settings = vars(&set).unwrap();
    assert_eq!(settings.requests_max(), 64);
    let remarks = settings.take_remarks();
    assert!(remarks.len() == 1 && remarks[0].starts_with("NCCL_IB_TIMOUT is set"), "{remarks:?}");
    let refused = vars(&[("INVAR_FIFO_DEPTH", "7")]).unwrap_err().to_string();
    assert!(refused.starts_with("INVAR_FIFO_DEPTH=7: must be a power of two"), "{refused}");
}
