//! Builds the image of `dist/container/Dockerfile` with buildah, and runs it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::root::{COMMAND_SECONDS_MAX, Root, is_installed};
use super::{Outcome, job};
use crate::shell;

const RECIPE: &str = "dist/container/Dockerfile";
/// Makes the base image from a clean root. Like Debian's slim image, it leaves documentation out.
const BASE: &str = "FROM scratch
ADD root.tar /
RUN echo 'path-exclude=/usr/share/doc/*' > /etc/dpkg/dpkg.cfg.d/slim
";
const BUILD_SECONDS_MAX: &str = "600";
const IMAGE: &str = "invar";
const TEXTS: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY-LICENSES.txt"];

/// Builds the image from the recipe and the Debian package, and runs the jobs of an installation in it. The base
/// image comes from `root`. `work` is a directory for all images, which is removed with its parent.
pub(super) fn check(root: &Root, packages: &Path, work: &Path) -> Result<Outcome> {
    if !is_installed("buildah") {
        return Ok(Outcome::Skipped("buildah is missing".to_owned()));
    }
    let recipe = shell::root()?.join(RECIPE);
    let text = fs::read_to_string(&recipe).context(RECIPE)?;
    let base = text.lines().find_map(|line| line.strip_prefix("FROM ")).context("no FROM")?;
    let images = Images(work.to_owned());
    let context = work.join("base");
    fs::create_dir_all(&context).with_context(|| context.display().to_string())?;
    let mut tar = shell::command("tar", &["--create", "--file"])?;
    tar.arg(context.join("root.tar")).arg("--directory").arg(root.path()).arg(".");
    shell::read(tar)?;
    let file = context.join("Dockerfile");
    fs::write(&file, BASE).with_context(|| file.display().to_string())?;
    images.build(base, &file, &context)?;
    images.build(IMAGE, &recipe, packages)?;
    let container = images.read(COMMAND_SECONDS_MAX, &["from", "--pull-never", IMAGE])?;
    let container = container.trim();
    let run = |words: &[&str]| {
        let args = [&["run", "--isolation", "chroot", container, "--"], words].concat();
        images.read(COMMAND_SECONDS_MAX, &args)
    };
    let configured = |field: &str| {
        let format = format!("{{{{range .OCIv1.Config.{field}}}}}{{{{.}}}} {{{{end}}}}");
        images.read(COMMAND_SECONDS_MAX, &["inspect", "--format", &format, container])
    };
    let (command, args) = (configured("Entrypoint")?, configured("Cmd")?);
    let words = command.split_whitespace().chain(args.split_whitespace());
    run(&words.collect::<Vec<_>>())?;
    let lines = job(&run, &[command.trim()])?;
    ensure!(!lines.contains("LD_LIBRARY_PATH"), "the loader does not find the plugin: {lines}");
    for text in TEXTS {
        run(&["test", "-s", &format!("/usr/share/doc/invar/{text}")])?;
    }
    Ok(Outcome::Passed("buildah built the image on Debian 12, and it ran".to_owned()))
}

/// The directory of buildah's images and containers. The storage driver `vfs` needs no overlay file system.
struct Images(PathBuf);

impl Images {
    fn build(&self, name: &str, recipe: &Path, context: &Path) -> Result<()> {
        let [recipe, context] =
            [recipe, context].map(|path| path.to_str().context("the path is UTF-8"));
        let args = [
            "bud",
            "--isolation",
            "chroot",
            "--pull-never",
            "--tag",
            name,
            "--file",
            recipe?,
            context?,
        ];
        self.read(BUILD_SECONDS_MAX, &args).map(drop)
    }

    fn read(&self, seconds_max: &str, args: &[&str]) -> Result<String> {
        let mut command = shell::command("timeout", &["--kill-after=5", seconds_max, "buildah"])?;
        command.args(["--storage-driver", "vfs", "--root"]).arg(self.0.join("images"));
        command.arg("--runroot").arg(self.0.join("run")).args(args);
        shell::read(command)
    }
}
