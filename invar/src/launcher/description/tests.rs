use super::*;

fn read_from(set: &[(&str, &str)]) -> Result<Option<Launch>, Error> {
    let value = |name: &str| {
        let pair = set.iter().find(|(other, _)| *other == name);
        pair.map(|(_, value)| (*value).to_owned())
    };
    read(&value)
}

fn launch_of(set: &[(&str, &str)]) -> Launch {
    read_from(set).unwrap().expect("a launcher")
}

fn hosts(launch: &Launch) -> &[String] {
    match &launch.place {
        MeetingPoint::Host { hosts, .. } => hosts,
        MeetingPoint::Pmi { .. } => &[],
    }
}

const TORCHRUN: [(&str, &str); 5] = [
    ("RANK", "3"),
    ("WORLD_SIZE", "8"),
    ("MASTER_ADDR", "node7"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "abc"),
];
const SLURM: [(&str, &str); 5] = [
    ("SLURM_PROCID", "5"),
    ("SLURM_STEP_NUM_TASKS", "6"),
    ("SLURM_STEP_NODELIST", "gpu[07-09]"),
    ("SLURM_JOB_ID", "4711"),
    ("SLURM_STEP_ID", "0"),
];

#[test]
fn a_process_that_nobody_launched_has_no_launch() {
    assert_eq!(read_from(&[]).unwrap(), None);
    assert_eq!(read_from(&[("RANK", ""), ("SLURM_PROCID", "0")]).unwrap(), None);
    // An MPI program alone.
    assert_eq!(read_from(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")]).unwrap(), None);
}

#[test]
fn torchrun_goes_before_the_slurm_that_started_it() {
    let both = [&TORCHRUN[..], &SLURM].concat();
    let launch = launch_of(&both);
    assert_eq!((launch.launcher, launch.rank, launch.nranks), (Launcher::Torchrun, 3, 8));
    assert_eq!(hosts(&launch), ["node7"]);
    // The port only tells jobs apart.
    let portless = TORCHRUN.into_iter().filter(|(name, _)| *name != "MASTER_PORT");
    assert_eq!(launch_of(&portless.collect::<Vec<_>>()).launcher, Launcher::Torchrun);
}

#[test]
fn ranks_of_one_job_meet_and_those_of_two_do_not() {
    let job = |step: &str, rank: &str| {
        let mut set = SLURM.to_vec();
        set.extend([("SLURM_PROCID", rank), ("SLURM_STEP_ID", step)]);
        set.reverse();
        launch_of(&set).place
    };
    assert_eq!(job("0", "1"), job("0", "2"));
    assert_ne!(job("0", "1"), job("1", "1"));
}

#[test]
fn slurm_ranks_meet_on_the_first_node_of_the_step() {
    let launch = launch_of(&SLURM);
    assert_eq!((launch.launcher, launch.rank, launch.nranks), (Launcher::Slurm, 5, 6));
    assert_eq!(hosts(&launch), ["gpu07"]);
}

#[test]
fn a_slurm_batch_script_is_no_rank() {
    let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "6"), ("SLURM_JOB_ID", "4711")];
    assert_eq!(read_from(&batch).unwrap(), None);
}

const OPEN_MPI_4: [(&str, &str); 8] = [
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
    ("OMPI_MCA_orte_hnp_uri", "7.0;tcp://10.0.0.1,10.1.0.1:55749;tcp6://[fd00::2]:37787"),
    ("OMPI_MCA_orte_precondition_transports", "142a237be177f068-be96e208ff595dd5"),
    ("OMPI_MCA_ess_base_jobid", "458753"),
    ("PMIX_NAMESPACE", "458753"),
    ("PMIX_RANK", "1"),
];
const OPEN_MPI_5: [(&str, &str); 6] = [
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
    ("PMIX_NAMESPACE", "prterun-node-7-4711@1"),
    ("PMIX_RANK", "1"),
    ("PMIX_SERVER_URI41", "prterun-node-7-4711@0.0;tcp4://127.0.0.1:59569"),
];

/// The variables of a launcher with one more, or one changed.
fn with<'a>(set: &[(&'a str, &'a str)], name: &'a str, value: &'a str) -> Vec<(&'a str, &'a str)> {
    [&[(name, value)], set].concat()
}

#[test]
fn open_mpi_ranks_on_several_hosts_meet_where_mpirun_runs() {
    let launch = launch_of(&OPEN_MPI_4);
    assert_eq!((launch.launcher, launch.rank, launch.nranks), (Launcher::OpenMpi, 1, 2));
    assert_eq!(hosts(&launch), ["10.0.0.1", "10.1.0.1", "fd00::2"]);
    let launch = launch_of(&OPEN_MPI_5);
    assert_eq!((launch.launcher, launch.rank, launch.nranks), (Launcher::OpenMpi, 1, 2));
    assert_eq!(hosts(&launch), ["node-7"]);
}

#[test]
fn open_mpi_ranks_on_one_host_meet_there_and_others_where_the_user_says() {
    for set in [&OPEN_MPI_4[..], &OPEN_MPI_5] {
        let set = with(set, "MASTER_ADDR", "node-8");
        assert_eq!(hosts(&launch_of(&set)), ["node-8"]);
        let set = with(&set, "OMPI_COMM_WORLD_LOCAL_SIZE", "2");
        assert_eq!(hosts(&launch_of(&set)), ["localhost"]);
    }
    let other = with(&OPEN_MPI_5, "PMIX_NAMESPACE", "of a batch system");
    let text = read_from(&other).unwrap_err().to_string();
    assert!(text.contains("mpirun -x MASTER_ADDR=HOST"), "{text}");
}

#[test]
fn ranks_of_two_jobs_of_one_mpirun_do_not_meet() {
    let other = with(&OPEN_MPI_5, "PMIX_NAMESPACE", "prterun-node-7-4711@2");
    assert_ne!(launch_of(&OPEN_MPI_5).place, launch_of(&other).place);
}

#[test]
fn mpich_has_a_socket_to_its_launcher() {
    let launch = launch_of(&[("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("PMI_FD", "6")]);
    assert_eq!(
        (launch.launcher, launch.place),
        (Launcher::Pmi, MeetingPoint::Pmi { descriptor: 6 })
    );
}

#[test]
fn pods_of_an_indexed_job_meet_at_index_0() {
    let pod = [("JOB_COMPLETION_INDEX", "12"), ("HOSTNAME", "train-12"), ("WORLD_SIZE", "16")];
    let launch = launch_of(&pod);
    assert_eq!((launch.launcher, launch.rank, launch.nranks), (Launcher::Kubernetes, 12, 16));
    assert_eq!(hosts(&launch).last().unwrap(), "train-0");
    let zero = [("JOB_COMPLETION_INDEX", "0"), ("HOSTNAME", "train-0"), ("WORLD_SIZE", "16")];
    assert_eq!(launch_of(&zero).place, launch.place);
    // On the network of their hosts pods have the names of these.
    let node = |index, name| {
        let job = [("WORLD_SIZE", "2"), ("MASTER_ADDR", "node-a")];
        launch_of(&[&job[..], &[("JOB_COMPLETION_INDEX", index), ("HOSTNAME", name)]].concat())
            .place
    };
    assert_eq!(node("0", "node-a"), node("1", "node-b"));
}

#[test]
fn a_pod_has_the_domain_of_its_own_name() {
    let hosts = "127.0.0.1 localhost\n10.1.2.3\ttrain-1.svc.ns.svc.cluster.local train-1 # own\n";
    assert_eq!(domain_of("train-1", hosts), Some("svc.ns.svc.cluster.local"));
    assert_eq!(domain_of("train-10", hosts), None);
}

#[test]
fn a_pod_of_an_indexed_job_needs_the_number_of_pods() {
    let pod = [("JOB_COMPLETION_INDEX", "1"), ("HOSTNAME", "train-1")];
    let text = read_from(&pod).unwrap_err().to_string();
    assert!(text.contains(r#"{name: WORLD_SIZE, value: "2"}"#), "{text}");
    // Whoever names the ranks by torchrun's variables needs no index.
    assert_eq!(launch_of(&[&pod[..], &TORCHRUN].concat()).launcher, Launcher::Torchrun);
}

#[test]
fn a_process_of_a_launcher_with_another_pmi_is_not_alone() {
    let process = [("PMI_RANK", "0"), ("PMI_SIZE", "2")];
    let text = read_from(&process).unwrap_err().to_string();
    assert!(
        text.contains("PMI_FD") && text.contains("set RANK, WORLD_SIZE, MASTER_ADDR"),
        "{text}"
    );
    assert_eq!(launch_of(&[&process[..], &SLURM].concat()).launcher, Launcher::Slurm);
}

#[test]
fn what_a_launcher_leaves_out_is_named() {
    let error = |set: &[(&str, &str)]| read_from(set).unwrap_err().to_string();
    let text = error(&with(&OPEN_MPI_5, "OMPI_COMM_WORLD_SIZE", ""));
    assert!(text.contains("OMPI_COMM_WORLD_SIZE"), "{text}");
    let text = error(&[("PMI_RANK", "x"), ("PMI_SIZE", "2"), ("PMI_FD", "6")]);
    assert!(text.contains("PMI_RANK=x"), "{text}");
    let text = error(&[("PMI_RANK", "2"), ("PMI_SIZE", "2"), ("PMI_FD", "6")]);
    assert!(text.contains("rank 2 of 2"), "{text}");
}

#[test]
fn a_launch_on_a_log_tells_no_secret() {
    let text = format!("{:?}", launch_of(&with(&OPEN_MPI_4, SECRET, "correct horse")));
    assert_eq!(text, "Launch { launcher: OpenMpi, rank: 1, nranks: 2, .. }");
}
