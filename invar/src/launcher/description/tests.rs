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
        Place::Host { hosts, .. } => hosts,
        Place::Pmi { .. } => &[],
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
    // Kubernetes does not tell the number of pods, so the job must set it.
    assert_eq!(read_from(&[("JOB_COMPLETION_INDEX", "1")]).unwrap(), None);
}

#[test]
fn torchrun_goes_before_the_slurm_that_started_it() {
    let both = [&TORCHRUN[..], &SLURM].concat();
    let launch = launch_of(&both);
    assert_eq!((launch.launcher, launch.rank, launch.nranks), (Launcher::Torchrun, 3, 8));
    assert_eq!(hosts(&launch), ["node7"]);
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

#[test]
fn open_mpi_ranks_meet_where_mpirun_runs() {
    let launch = launch_of(&[
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_MCA_orte_hnp_uri", "7.0;tcp://10.0.0.1,10.1.0.1:55749;tcp6://[fd00::2]:37787"),
        ("OMPI_MCA_orte_precondition_transports", "142a237be177f068-be96e208ff595dd5"),
        ("PMIX_RANK", "1"),
    ]);
    assert_eq!((launch.launcher, launch.rank, launch.nranks), (Launcher::OpenMpi, 1, 2));
    assert_eq!(hosts(&launch), ["10.0.0.1", "10.1.0.1", "fd00::2"]);
}

#[test]
fn mpich_has_a_socket_to_its_launcher() {
    let launch = launch_of(&[("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("PMI_FD", "6")]);
    assert_eq!((launch.launcher, launch.place), (Launcher::Pmi, Place::Pmi { descriptor: 6 }));
}

#[test]
fn pods_of_an_indexed_job_meet_at_index_0() {
    let pod = [("JOB_COMPLETION_INDEX", "12"), ("HOSTNAME", "train-12"), ("WORLD_SIZE", "16")];
    let launch = launch_of(&pod);
    assert_eq!((launch.launcher, launch.rank, launch.nranks), (Launcher::Kubernetes, 12, 16));
    assert_eq!(hosts(&launch).last().unwrap(), "train-0");
    let zero = [("JOB_COMPLETION_INDEX", "0"), ("HOSTNAME", "train-0"), ("WORLD_SIZE", "16")];
    assert_eq!(launch_of(&zero).place, launch.place);
}

#[test]
fn a_pod_has_the_domain_of_its_own_name() {
    let hosts = "127.0.0.1 localhost\n10.1.2.3\ttrain-1.svc.ns.svc.cluster.local train-1 # own\n";
    assert_eq!(domain_of("train-1", hosts), Some("svc.ns.svc.cluster.local"));
    assert_eq!(domain_of("train-10", hosts), None);
}

#[test]
fn what_a_launcher_leaves_out_is_named() {
    let error = |set: &[(&str, &str)]| read_from(set).unwrap_err().to_string();
    assert!(error(&[("OMPI_COMM_WORLD_RANK", "0")]).contains("OMPI_MCA_orte_hnp_uri"));
    let text = error(&[("PMI_RANK", "x"), ("PMI_SIZE", "2"), ("PMI_FD", "6")]);
    assert!(text.contains("PMI_RANK=x"), "{text}");
    let text = error(&[("PMI_RANK", "2"), ("PMI_SIZE", "2"), ("PMI_FD", "6")]);
    assert!(text.contains("rank 2 of 2"), "{text}");
}
