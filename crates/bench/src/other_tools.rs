//! Other isolation tools on this machine: bubblewrap, Docker and gVisor, if they are installed and work.
//! Nothing is installed, pulled or started for the benchmark.

use std::env::split_paths;
use std::path::PathBuf;
use std::process::Command;

use crate::command::{CommandBench, FOLDER, output_with_timeout};
use crate::workload::Workload;

/// A tool that is not in the table, with the reason.
pub(crate) type MissingTool = (&'static str, String);

/// Returns the tools that ran the workload once, and the reasons why the others did not.
pub(crate) fn find(
    control: &CommandBench,
    workload: &Workload,
    docker_too: bool,
) -> (Vec<CommandBench>, Vec<MissingTool>) {
    let (mut found, mut absent) = (Vec::new(), Vec::new());
    let tools = [
        ("bwrap", bwrap as fn(&CommandBench, &Workload) -> Result<CommandBench, String>),
        ("docker", docker),
        ("runsc", runsc),
    ];
    for (name, tool) in tools.into_iter().filter(|(name, _)| docker_too || *name != "docker") {
        let works = |command: CommandBench| command.try_once(&workload.code_sample()).map(|()| command);
        match tool(control, workload).and_then(works) {
            Ok(command) => found.push(CommandBench { name, ..command }),
            Err(why) => absent.push((name, why)),
        }
    }
    (found, absent)
}

fn bwrap(control: &CommandBench, _: &Workload) -> Result<CommandBench, String> {
    let flags = ["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"];
    Ok(prefixed(control, &installed("bwrap")?, &flags))
}

fn runsc(control: &CommandBench, _: &Workload) -> Result<CommandBench, String> {
    let flags = ["--rootless", "--network=none", "--ignore-cgroups", "do"];
    Ok(prefixed(control, &installed("runsc")?, &flags))
}

/// Prefixes the control's command with a tool and its flags.
fn prefixed(control: &CommandBench, tool: &str, flags: &[&str]) -> CommandBench {
    let words = [tool].into_iter().chain(flags.iter().copied()).map(str::to_owned);
    CommandBench { words: words.chain(control.words.iter().cloned()).collect(), ..control.clone() }
}

/// Runs the workload with the image's own interpreter, as users of Docker do.
fn docker(control: &CommandBench, workload: &Workload) -> Result<CommandBench, String> {
    let docker = installed("docker")?;
    let image = image(&docker, workload)?;
    let mount = format!("{FOLDER}:/workspace:ro");
    let source = format!("/workspace/{}", workload.file);
    let flags = ["run", "--rm", "--network", "none", "--volume", &mount, "--workdir", "/workspace"];
    let words =
        [docker.as_str()].into_iter().chain(flags).chain([image.as_str(), workload.interpreter(), &source]);
    // The client finds its daemon through environment variables.
    Ok(CommandBench { words: words.map(str::to_owned).collect(), env: None, ..control.clone() })
}

/// Finds a local image for the workload.
fn image(docker: &str, workload: &Workload) -> Result<String, String> {
    let mut command = Command::new(docker);
    command.args(["image", "ls", "--format", "{{.Repository}}:{{.Tag}}"]);
    command
        .args(workload.images.iter().flat_map(|name| ["--filter".to_owned(), format!("reference={name}")]));
    let output = output_with_timeout(&mut command)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(said.lines().next().unwrap_or("the Docker daemon does not answer").trim().to_owned());
    }
    let listed = String::from_utf8_lossy(&output.stdout);
    let tagged = listed.lines().find(|line| !line.is_empty() && !line.contains("<none>"));
    tagged
        .map(str::to_owned)
        .ok_or_else(|| format!("no image; get one with: docker pull {}", workload.images[0]))
}

pub(crate) fn installed(program: &str) -> Result<String, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file());
    found
        .map(PathBuf::into_os_string)
        .and_then(|path| path.into_string().ok())
        .ok_or("not installed".to_owned())
}
