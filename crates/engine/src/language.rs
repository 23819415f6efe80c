//! The table of languages: how code in each language is named, built, run and called.
//!
//! In a step, `{program}` is the runtime that was found, `{source}` the file with the code, `{out}` the path
//! for a compiled program, `{out_folder}` its folder, `{main_class}` the first class of Java code, `{memory}` and
//! `{cpus}` the limits.

use crate::Error;
use crate::plan::WORKSPACE;

/// How a language receives arguments and returns a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallingConvention {
    /// A runner script of Belljar calls `main`.
    Main {
        /// Source of the runner script.
        runner: &'static str,
        /// File name of the runner script.
        file: &'static str,
        /// Appended to the code, so that the runner finds a `main` that is declared but not exported.
        epilogue: &'static str,
    },
    /// Each argument becomes an environment variable; there is no result.
    Environment,
    /// Arguments are not supported.
    Unsupported,
}

/// One way to run a language: a program to look for, and the steps to run with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runtime {
    /// Name of the program to look for on `PATH`.
    pub program: &'static str,
    /// Resolves a version manager's shim to the real program: arguments that make it print a path, and a
    /// suffix for that path.
    pub locate: (&'static [&'static str], &'static str),
    /// The oldest supported `--version` (major, minor), if any.
    pub at_least: Option<(u32, u32)>,
    /// Commands to run in order until one fails; the last one runs the program.
    pub steps: &'static [&'static [&'static str]],
    /// How to build and run programs in separate sandboxes, so that a program is built only once.
    pub build: Option<BuildSteps>,
    /// Environment variables that this runtime needs.
    pub env: &'static [(&'static str, &'static str)],
    /// The module that prepares the runtime for a program, if there is one.
    pub startup: Option<StartupModule>,
    /// How to run code that is not in the workspace, if a language without a runner of arguments resolves modules
    /// from its file.
    pub workspace_script: Option<WorkspaceScript>,
    /// The script that makes the runtime wait for its program, if it can be started ahead of time.
    pub prestart: Option<PrestartScript>,
}

/// A module that a runtime imports before its program, from a folder in a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartupModule {
    /// The variable with folders of modules. The module removes its own folder from it.
    pub variable: &'static str,
    /// File name of the module.
    pub file: &'static str,
    /// Source of the module.
    pub source: &'static str,
}

/// A script that runs code in another folder as if it were in the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkspaceScript {
    /// File name of the script.
    pub file: &'static str,
    /// Source of the script.
    pub source: &'static str,
    /// The command, in which `{script}` is the script and `{name}` the file name of the code.
    pub command: &'static [&'static str],
}

/// Two commands with a built program between them. The first leaves it in `{out_folder}` and depends on nothing
/// but the compiler, the files, the environment and the working directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuildSteps {
    /// Builds the program.
    pub build: &'static [&'static str],
    /// Runs the built program.
    pub run: &'static [&'static str],
}

/// A script that makes an initialized interpreter wait for its program. It writes one byte when ready,
/// continues when it reads one byte from standard input, and consumes no further input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrestartScript {
    /// The interpreter option that loads the script; it comes first.
    pub option: &'static str,
    /// File name of the script.
    pub file: &'static str,
    /// Source of the script.
    pub script: &'static str,
}

/// A supported language.
#[derive(Debug, PartialEq, Eq)]
pub struct Language {
    /// Canonical name.
    pub name: &'static str,
    /// Other accepted names.
    pub aliases: &'static [&'static str],
    /// File name extensions. The code is written to `main.` and the first one, unless its source file has
    /// another.
    pub extensions: &'static [&'static str],
    /// Ways to run the language, best first.
    pub runtimes: &'static [Runtime],
    /// Environment variables that set the number of threads.
    pub thread_variables: &'static [&'static str],
    /// How arguments are passed.
    pub calling_convention: CallingConvention,
    /// `Some` if the interpreter can be started ahead of time: prefixes of the variables that it or its
    /// imports read only at startup. A request that sets one of them cannot use a warm interpreter.
    pub warm_env_prefixes: Option<&'static [&'static str]>,
    /// How to install a runtime if none is found.
    pub install: &'static str,
}

const OPENMP_VARIABLES: &[&str] = &["OMP_NUM_THREADS"];
const NO_LOCATE_ARGUMENTS: &[&str] = &[];

const fn interpreter(program: &'static str, steps: &'static [&'static [&'static str]]) -> Runtime {
    let locate = (NO_LOCATE_ARGUMENTS, "");
    Runtime {
        program,
        locate,
        at_least: None,
        steps,
        build: None,
        env: &[],
        startup: None,
        workspace_script: None,
        prestart: None,
    }
}

const fn compiler(program: &'static str, steps: &'static [&'static [&'static str]; 2]) -> Runtime {
    let build = Some(BuildSteps { build: steps[0], run: steps[1] });
    Runtime { build, ..interpreter(program, steps) }
}

const PYTHON_STARTUP_PREFIXES: &[&str] = &[
    "PYTHON",
    "LD_",
    "LC_",
    "LANG",
    "TZ",
    "HOME",
    "MALLOC_",
    "GLIBC_",
    "OMP_",
    "OPENBLAS_",
    "MKL_",
    "NUMEXPR_",
    "MPL",
    "SSL_",
    "OPENSSL_",
];
const NODE_STARTUP_PREFIXES: &[&str] =
    &["NODE_", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "GLIBC_", "UV_", "ICU_", "SSL_", "OPENSSL_"];

const PYTHON: Runtime = Runtime {
    locate: (&["-c", "import sys; print(sys.executable)"], ""),
    env: &[("PYTHONDONTWRITEBYTECODE", "1")],
    startup: Some(StartupModule {
        variable: "PYTHONPATH",
        file: "sitecustomize.py",
        // The launcher gives zygotes the same text.
        source: concat!(
            "FIGURES = r'''",
            include_str!("runners/figures.py"),
            "'''\n",
            include_str!("runners/startup.py")
        ),
    }),
    ..interpreter("python3", &[&["{program}", "{source}"]])
};

const NODE: Runtime = Runtime {
    locate: (&["-p", "process.execPath"], ""),
    prestart: Some(PrestartScript {
        option: "--require",
        file: "wait.cjs",
        script: include_str!("runners/wait.cjs"),
    }),
    ..interpreter("node", &[&["{program}", "{source}"]])
};

const BUN: Runtime = interpreter("bun", &[&["{program}", "run", "{source}"]]);

const C_STEPS: &[&[&str]; 2] =
    &[&["{program}", "-O1", "-iquote", WORKSPACE, "-o", "{out}", "{source}", "-lm", "-pthread"], &["{out}"]];

/// Without a cache, Java compiles in memory and runs in one process, which is faster once.
const JAVA_BUILD: BuildSteps = BuildSteps {
    build: &[
        "{program}",
        "-XX:MaxRAM={memory}",
        "-XX:ActiveProcessorCount={cpus}",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "--module",
        "jdk.compiler/com.sun.tools.javac.Main",
        "-proc:none",
        "-d",
        "{out_folder}",
        "{source}",
    ],
    run: &[
        "{program}",
        "-XX:MaxRAM={memory}",
        "-XX:ActiveProcessorCount={cpus}",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "--class-path",
        "{out_folder}:.",
        "{main_class}",
    ],
};

/// All languages, in the order in which help lists them. A test runs each of them.
pub const LANGUAGES: &[Language] = &[
    Language {
        name: "python",
        aliases: &["py", "python3"],
        extensions: &["py"],
        runtimes: &[PYTHON],
        thread_variables: OPENMP_VARIABLES,
        calling_convention: CallingConvention::Main {
            runner: include_str!("runners/python.py"),
            file: "runner.py",
            epilogue: "",
        },
        warm_env_prefixes: Some(PYTHON_STARTUP_PREFIXES),
        install: "apt-get install python3",
    },
    Language {
        name: "javascript",
        aliases: &["js", "node", "nodejs"],
        extensions: &["js", "mjs", "cjs"],
        runtimes: &[NODE],
        thread_variables: OPENMP_VARIABLES,
        calling_convention: CallingConvention::Main {
            runner: include_str!("runners/javascript.cjs"),
            file: "runner.cjs",
            epilogue: "\n;globalThis[Symbol.for('belljar.main')] = typeof main === 'function' ? main : undefined;\n",
        },
        warm_env_prefixes: Some(NODE_STARTUP_PREFIXES),
        install: "apt-get install nodejs",
    },
    Language {
        name: "typescript",
        aliases: &["ts"],
        extensions: &["ts", "mts", "cts"],
        runtimes: &[Runtime { at_least: Some((22, 18)), ..NODE }, BUN],
        thread_variables: OPENMP_VARIABLES,
        calling_convention: CallingConvention::Main {
            runner: include_str!("runners/javascript.cjs"),
            file: "runner.cjs",
            epilogue: "\n;(globalThis as any)[Symbol.for('belljar.main')] = typeof main === 'function' ? main : undefined;\n",
        },
        warm_env_prefixes: None,
        install: "npm install --global bun (or Node.js 22.18 or later)",
    },
    Language {
        name: "bash",
        aliases: &["sh", "shell"],
        extensions: &["sh", "bash"],
        runtimes: &[interpreter("bash", &[&["{program}", "{source}"]])],
        thread_variables: &["OMP_NUM_THREADS", "GOMAXPROCS", "RAYON_NUM_THREADS"],
        calling_convention: CallingConvention::Environment,
        warm_env_prefixes: None,
        install: "apt-get install bash",
    },
    Language {
        name: "ruby",
        aliases: &["rb"],
        extensions: &["rb"],
        runtimes: &[Runtime {
            locate: (&["-e", "puts RbConfig.ruby"], ""),
            workspace_script: Some(WorkspaceScript {
                file: "workspace.rb",
                source: include_str!("runners/workspace.rb"),
                command: &["{program}", "{script}", "{source}"],
            }),
            ..interpreter("ruby", &[&["{program}", "{source}"]])
        }],
        thread_variables: &[],
        calling_convention: CallingConvention::Unsupported,
        warm_env_prefixes: None,
        install: "apt-get install ruby",
    },
    Language {
        name: "perl",
        aliases: &["pl"],
        extensions: &["pl"],
        runtimes: &[Runtime {
            locate: (&["-e", "print $^X"], ""),
            ..interpreter("perl", &[&["{program}", "{source}"]])
        }],
        thread_variables: &[],
        calling_convention: CallingConvention::Unsupported,
        warm_env_prefixes: None,
        install: "apt-get install perl",
    },
    Language {
        name: "php",
        aliases: &[],
        extensions: &["php"],
        runtimes: &[Runtime {
            locate: (&["-r", "echo PHP_BINARY;"], ""),
            workspace_script: Some(WorkspaceScript {
                file: "workspace.php",
                source: include_str!("runners/workspace.php"),
                command: &["{program}", "-d", "auto_append_file=/workspace/{name}", "{script}", "{source}"],
            }),
            ..interpreter("php", &[&["{program}", "{source}"]])
        }],
        thread_variables: &[],
        calling_convention: CallingConvention::Unsupported,
        warm_env_prefixes: None,
        install: "apt-get install php-cli",
    },
    Language {
        name: "lua",
        aliases: &[],
        extensions: &["lua"],
        runtimes: &[interpreter("lua", &[&["{program}", "{source}"]])],
        thread_variables: &[],
        calling_convention: CallingConvention::Unsupported,
        warm_env_prefixes: None,
        install: "apt-get install lua5.4",
    },
    Language {
        name: "r",
        aliases: &["rscript"],
        extensions: &["R", "r"],
        runtimes: &[interpreter("Rscript", &[&["{program}", "{source}"]])],
        thread_variables: OPENMP_VARIABLES,
        calling_convention: CallingConvention::Unsupported,
        warm_env_prefixes: None,
        install: "apt-get install r-base-core",
    },
    Language {
        name: "go",
        aliases: &["golang"],
        extensions: &["go"],
        runtimes: &[Runtime {
            locate: (&["env", "GOROOT"], "/bin/go"),
            // Without data for debuggers, like `go run`. Stack traces do not need it.
            env: &[("GOTOOLCHAIN", "local"), ("CGO_ENABLED", "0"), ("GOFLAGS", "-ldflags=-s")],
            ..compiler("go", &[&["{program}", "build", "-o", "{out}", "{source}"], &["{out}"]])
        }],
        thread_variables: &["GOMAXPROCS"],
        calling_convention: CallingConvention::Unsupported,
        warm_env_prefixes: None,
        install: "apt-get install golang-go",
    },
    Language {
        name: "rust",
        aliases: &["rs"],
        extensions: &["rs"],
        runtimes: &[Runtime {
            locate: (&["--print", "sysroot"], "/bin/rustc"),
            ..compiler("rustc", &[&["{program}", "--edition", "2021", "-o", "{out}", "{source}"], &["{out}"]])
        }],
        thread_variables: &["RAYON_NUM_THREADS"],
        calling_convention: CallingConvention::Unsupported,
        warm_env_prefixes: None,
        install: "apt-get install rustc",
    },
    Language {
        name: "c",
        aliases: &[],
        extensions: &["c"],
        runtimes: &[compiler("gcc", C_STEPS)],
        thread_variables: OPENMP_VARIABLES,
        calling_convention: CallingConvention::Unsupported,
        warm_env_prefixes: None,
        install: "apt-get install gcc libc6-dev",
    },
    Language {
        name: "cpp",
        aliases: &["c++", "cxx"],
        extensions: &["cpp", "cc", "cxx"],
        runtimes: &[compiler("g++", C_STEPS), compiler("c++", C_STEPS), compiler("clang++", C_STEPS)],
        thread_variables: OPENMP_VARIABLES,
        calling_convention: CallingConvention::Unsupported,
        warm_env_prefixes: None,
        install: "apt-get install g++",
    },
    Language {
        name: "java",
        aliases: &[],
        extensions: &["java"],
        runtimes: &[Runtime {
            at_least: Some((11, 0)),
            build: Some(JAVA_BUILD),
            ..interpreter(
                "java",
                &[&[
                    "{program}",
                    "-XX:MaxRAM={memory}",
                    "-XX:ActiveProcessorCount={cpus}",
                    "-XX:+UseSerialGC",
                    "-XX:TieredStopAtLevel=1",
                    "{source}",
                ]],
            )
        }],
        thread_variables: &[],
        calling_convention: CallingConvention::Unsupported,
        warm_env_prefixes: None,
        install: "apt-get install default-jdk-headless",
    },
];

impl Language {
    /// Finds a language by name or alias, ignoring case.
    ///
    /// # Errors
    /// Lists the known names.
    pub fn from_name(text: &str) -> Result<&'static Language, Error> {
        let wanted = text.trim().to_ascii_lowercase();
        LANGUAGES.iter().find(|l| l.name == wanted || l.aliases.contains(&wanted.as_str())).ok_or_else(|| {
            let known: Vec<_> = LANGUAGES.iter().map(|language| language.name).collect();
            Error::UnknownLanguage { given: text.to_owned(), known: known.join(", ") }
        })
    }

    /// Returns whether builds need a library that is provided in compiled form.
    pub fn has_prebuilt_library(&self) -> bool {
        self.name == "go"
    }

    /// Finds a language by the extension of a file name.
    pub fn from_file_name(name: &str) -> Option<&'static Language> {
        let (_, extension) = name.rsplit_once('.')?;
        LANGUAGES.iter().find(|language| language.extensions.contains(&extension))
    }

    /// Returns the name of the code's file in the sandbox. A meaningful extension (`.mjs`) is kept.
    /// JavaScript that looks like a module gets `.mjs`, because not every runtime detects modules itself.
    pub fn source_name(&self, given: Option<&str>, code: &str) -> String {
        let extension = given
            .and_then(|name| name.rsplit_once('.'))
            .map(|(_, extension)| extension)
            .filter(|extension| self.extensions.contains(extension))
            .unwrap_or(self.extensions[0]);
        let extension = if extension == "js" && is_module(code) { "mjs" } else { extension };
        // Where Java requires the file to be named like its class, `Main` is the usual name.
        let stem = if self.name == "java" { "Main" } else { "main" };
        format!("{stem}.{extension}")
    }
}

/// Returns whether JavaScript is an ES module: a line starts with `import` or `export`, and nothing is
/// CommonJS.
fn is_module(code: &str) -> bool {
    let declares = |line: &str| {
        let after = line.strip_prefix("import").or_else(|| line.strip_prefix("export"));
        after.is_some_and(|rest| rest.starts_with([' ', '{', '*', '"', '\'']))
    };
    code.lines().any(declares) && !code.contains("require(") && !code.contains("module.exports")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_aliases_and_extensions_are_unique() {
        let mut seen = HashSet::new();
        for language in LANGUAGES {
            for word in std::iter::once(&language.name).chain(language.aliases) {
                assert!(seen.insert(word.to_string()), "{word} twice");
            }
        }
        let mut extensions = HashSet::new();
        assert!(LANGUAGES.iter().flat_map(|l| l.extensions).all(|e| extensions.insert(*e)));
    }

    #[test]
    fn fixed_aliases() {
        for (alias, name) in [
            ("py", "python"),
            ("js", "javascript"),
            ("node", "javascript"),
            ("nodejs", "javascript"),
            ("ts", "typescript"),
            ("sh", "bash"),
            ("shell", "bash"),
            ("Python", "python"),
        ] {
            assert_eq!(Language::from_name(alias).unwrap().name, name);
        }
        assert!(Language::from_name("cobol").unwrap_err().to_string().contains("python, javascript"));
    }

    #[test]
    fn source_names_keep_meaningful_extensions() {
        let js = Language::from_name("js").unwrap();
        assert_eq!(js.source_name(None, ""), "main.js");
        assert_eq!(js.source_name(Some("tool.mjs"), ""), "main.mjs");
        assert_eq!(js.source_name(Some("tool.txt"), ""), "main.js");
        assert_eq!(js.source_name(None, "import fs from 'fs'\n"), "main.mjs");
        assert_eq!(js.source_name(None, "x\nexport function main() {}"), "main.mjs");
        assert_eq!(js.source_name(Some("a.cjs"), "import fs from 'fs'\n"), "main.cjs");
        for not in ["import('fs')", "important()", "// import x", "export let a\nrequire('b')"] {
            assert_eq!(js.source_name(None, not), "main.js", "{not}");
        }
        assert_eq!(Language::from_file_name("a.tar.py").unwrap().name, "python");
        assert!(Language::from_file_name("Makefile").is_none());
    }
}
