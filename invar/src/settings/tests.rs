use super::*;

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
    let error = from(&[("NCCL_IB_TIMEOUT", "32")]).unwrap_err();
    assert_eq!(error.to_string(), "NCCL_IB_TIMEOUT=32: must be a number from 0 to 31");
    assert_eq!(error.fault(), invar_core::error::Fault::Usage);
}

#[test]
fn a_congestion_control_that_the_kernel_does_not_have_is_named() {
    let settings = from(&[("INVAR_SOCKET_CONGESTION", "nonesuch")]).unwrap();
    let error = settings.socket_congestion().unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("INVAR_SOCKET_CONGESTION=nonesuch: the kernel refuses"), "{text}");
    assert_eq!(error.fault(), invar_core::error::Fault::Usage);
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
