//! Predicates on the arguments of commands and calls.

type CommandWords<'a> = &'a [Option<String>];

fn known_words(words: CommandWords<'_>) -> impl Iterator<Item = &str> {
    words.iter().flatten().map(String::as_str)
}

pub(crate) fn has_word(words: CommandWords<'_>, wanted: &[&str]) -> bool {
    known_words(words).any(|word| wanted.contains(&word))
}

/// Returns whether the arguments contain a short flag, also in a cluster such as `-rf`, or its long form.
fn has_flag(words: CommandWords<'_>, short: char, long: &str) -> bool {
    known_words(words).any(|word| {
        word == long || (word.starts_with('-') && !word.starts_with("--") && word.contains(short))
    })
}

/// Returns whether a path is the root directory or a directory that the system needs.
pub(crate) fn is_root(path: &str) -> bool {
    let mut parts = Vec::new();
    for part in path.trim_end_matches('*').split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let path = if path.starts_with('/') { format!("/{}", parts.join("/")) } else { String::new() };
    let system = [
        "/", "/bin", "/boot", "/etc", "/lib", "/lib64", "/sbin", "/usr", "/var", "/root", "/home", "/dev",
        "/sys",
    ];
    system.contains(&path.as_str())
}

pub(crate) fn wipes_root(words: CommandWords<'_>) -> bool {
    let recursive = has_flag(words, 'r', "--recursive") || has_flag(words, 'R', "--recursive");
    recursive && (known_words(words).any(is_root) || has_word(words, &["--no-preserve-root"]))
}

pub(crate) fn is_recursive(words: CommandWords<'_>) -> bool {
    has_flag(words, 'r', "--recursive") || has_flag(words, 'R', "--recursive")
}

pub(crate) fn is_disk(path: &str) -> bool {
    let Some(name) = path.strip_prefix("/dev/") else { return path == "/proc/sysrq-trigger" };
    let disk = ["sd", "hd", "vd", "xvd", "nvme", "mmcblk", "dm-", "md", "loop"];
    matches!(name, "mem" | "kmem" | "port")
        || disk.iter().any(|start| {
            name.strip_prefix(start)
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_alphanumeric()) && rest.len() <= 8)
        })
}

pub(crate) fn writes_disk(words: CommandWords<'_>) -> bool {
    known_words(words).any(|word| word.strip_prefix("of=").is_some_and(is_disk))
}

pub(crate) fn names_disk(words: CommandWords<'_>) -> bool {
    known_words(words).any(is_disk)
}

pub(crate) fn deletes_found_at_root(words: CommandWords<'_>) -> bool {
    has_word(words, &["-delete"]) && known_words(words).next().is_some_and(is_root)
}

pub(crate) fn deletes_found(words: CommandWords<'_>) -> bool {
    has_word(words, &["-delete"])
}

pub(crate) fn is_recursive_at_root(words: CommandWords<'_>) -> bool {
    has_flag(words, 'R', "--recursive") && known_words(words).any(is_root)
}

pub(crate) fn sets_id(words: CommandWords<'_>) -> bool {
    known_words(words).any(|word| {
        (word.starts_with(['u', 'g', 'a', '+']) && word.contains("+s"))
            || word == "+s"
            || (word.len() == 4
                && word.starts_with(['2', '4', '6'])
                && word.bytes().all(|b| b.is_ascii_digit()))
    })
}

pub(crate) fn kills_all(words: CommandWords<'_>) -> bool {
    let mut words = known_words(words)
        .filter(|word| !matches!(*word, "-9" | "-KILL" | "-SIGKILL" | "-s" | "KILL" | "--"));
    words.any(|word| matches!(word, "-1"))
}

pub(crate) fn names_secret(words: CommandWords<'_>) -> bool {
    known_words(words).any(is_secret)
}

pub(crate) fn is_secret(path: &str) -> bool {
    let parts = [
        "/.ssh/id_",
        "/.aws/credentials",
        "/.kube/config",
        "/.docker/config.json",
        "/.netrc",
        "/.git-credentials",
    ];
    path == "/etc/shadow"
        || path == "/etc/gshadow"
        || path.starts_with("/proc/") && path.ends_with("/environ")
        || parts.iter().any(|part| path.contains(part))
        || path.starts_with("/var/run/secrets/")
}

/// Returns whether an awk or sed script starts programs.
pub(crate) fn starts_from_script(words: CommandWords<'_>) -> bool {
    known_words(words).any(|word| {
        let line = word.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, ',' | '$' | ' '));
        word.contains("system(")
            || word.contains("| getline")
            || word.contains("|&")
            || line.starts_with("e ")
            || (word.starts_with('s') && (word.ends_with("/e") || word.ends_with("/ge")))
    })
}

/// Returns whether an option names a program to start.
pub(crate) fn names_program(words: CommandWords<'_>) -> bool {
    let options = [
        "--checkpoint-action=exec",
        "--to-command",
        "--use-compress-program",
        "core.pager=",
        "core.sshCommand=",
        "core.fsmonitor=",
        "core.editor=",
        "core.hooksPath=",
        "alias.",
        "ProxyCommand",
        ":!",
    ];
    known_words(words).any(|word| options.iter().any(|option| word.starts_with(option)))
}

pub(crate) fn gets_code_argument(words: CommandWords<'_>) -> bool {
    has_word(words, &["-c", "-e", "--eval"])
}

pub(crate) fn executes_program_on_connect(words: CommandWords<'_>) -> bool {
    has_flag(words, 'e', "--exec") || has_flag(words, 'c', "--sh-exec")
}

pub(crate) fn installs_packages(words: CommandWords<'_>) -> bool {
    has_word(words, &["install", "add", "i", "download"])
}

pub(crate) fn git_remote(words: CommandWords<'_>) -> bool {
    known_words(words)
        .find(|word| !word.starts_with('-'))
        .is_some_and(|word| matches!(word, "clone" | "fetch" | "pull" | "push" | "ls-remote"))
}

pub(crate) fn is_network_file(path: &str) -> bool {
    path.starts_with("/dev/tcp/") || path.starts_with("/dev/udp/")
}

/// Returns whether a redirection target is an absolute path outside `/dev`.
pub(crate) fn is_absolute(path: &str) -> bool {
    path.starts_with('/') && !path.starts_with("/dev/")
}

/// Returns whether `open(path, "w")` writes to an absolute path, by its second argument or `mode=`.
pub(crate) fn opens_to_write(arguments: CommandWords<'_>) -> bool {
    let writes = |mode: &str| mode.len() <= 4 && mode.contains(['w', 'a', 'x', '+']);
    let second = arguments.get(1).and_then(|mode| mode.as_deref());
    let named = known_words(arguments).find_map(|word| word.strip_prefix("mode="));
    first_is_absolute(arguments) && (second.is_some_and(writes) || named.is_some_and(writes))
}

pub(crate) fn first_is_absolute(arguments: CommandWords<'_>) -> bool {
    arguments.first().and_then(|path| path.as_deref()).is_some_and(|path| path.starts_with('/'))
}

pub(crate) fn first_is_disk(arguments: CommandWords<'_>) -> bool {
    arguments.first().and_then(|path| path.as_deref()).is_some_and(is_disk)
}

pub(crate) fn first_is_root(arguments: CommandWords<'_>) -> bool {
    arguments.first().and_then(|path| path.as_deref()).is_some_and(is_root)
}

pub(crate) fn first_is_secret(arguments: CommandWords<'_>) -> bool {
    arguments.first().and_then(|path| path.as_deref()).is_some_and(is_secret)
}

pub(crate) fn opens_disk_to_write(arguments: CommandWords<'_>) -> bool {
    first_is_disk(arguments) && opens_to_write(arguments)
}
