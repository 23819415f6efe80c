//! The workloads: a small program in each language. No two runs have the same code, so no cache can answer,
//! and each has one right answer, because a crash is very fast.

use std::sync::atomic::{AtomicU64, Ordering};

/// A program that is run repeatedly, each time with another number in it.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) language: &'static str,
    /// Name of its file in the sandbox.
    pub(crate) file: &'static str,
    /// The code, with `{n}` for the number.
    code: &'static str,
    /// Computes the number that the program prints.
    answer: fn(u64) -> u64,
    /// Code that prints its process's environment and command line with an empty string between them, in the
    /// kernel's format: each entry followed by a NUL.
    pub(crate) probe: &'static str,
    /// Modules that a warm interpreter has imported.
    pub(crate) modules: &'static [&'static str],
    /// Whether its interpreter can be kept warm.
    pub(crate) can_be_warm: bool,
    /// Repositories of container images that can run it.
    pub(crate) images: &'static [&'static str],
}

/// The code of one run, and its only right output.
#[derive(Debug)]
pub(crate) struct CodeSample {
    pub(crate) code: String,
    pub(crate) answer: String,
}

const PYTHON_PROBE: &str = "print(*map(lambda name: open(f'/proc/self/{name}').read(), ('environ', 'cmdline')), \
                            sep='\\0', end='')";

/// Every workload, in the order of the table.
pub(crate) const WORKLOADS: &[Workload] = &[
    Workload {
        name: "python",
        language: "python",
        file: "main.py",
        code: "print(6 * {n})\n",
        answer: |n| 6 * n,
        probe: PYTHON_PROBE,
        modules: &[],
        can_be_warm: true,
        images: &["python"],
    },
    Workload {
        name: "python+pandas",
        language: "python",
        file: "main.py",
        code: "import numpy\nimport pandas\n\
               frame = pandas.DataFrame({'value': numpy.arange(10) + {n}})\nprint(frame['value'].sum())\n",
        answer: |n| 10 * n + 45,
        probe: PYTHON_PROBE,
        modules: &["numpy", "pandas"],
        can_be_warm: true,
        images: &["python"],
    },
    Workload {
        name: "javascript",
        language: "javascript",
        file: "main.js",
        code: "console.log(6 * {n})\n",
        answer: |n| 6 * n,
        probe: "const read = (name) => require('fs').readFileSync(`/proc/self/${name}`, 'utf8')\n\
                process.stdout.write(read('environ') + '\\0' + read('cmdline'))\n",
        modules: &[],
        can_be_warm: true,
        images: &["node"],
    },
    Workload {
        name: "bash",
        language: "bash",
        file: "main.sh",
        code: "echo $((6 * {n}))\n",
        answer: |n| 6 * n,
        probe: "cat /proc/$$/environ; printf '\\0'; cat /proc/$$/cmdline\n",
        modules: &[],
        can_be_warm: false,
        images: &["bash", "debian", "ubuntu"],
    },
];

impl Workload {
    /// Returns the name of the interpreter in a container image.
    pub(crate) fn interpreter(&self) -> &'static str {
        match self.language {
            "python" => "python3",
            "javascript" => "node",
            other => other,
        }
    }

    /// Creates code that has not run before.
    pub(crate) fn code_sample(&self) -> CodeSample {
        // Numbers of equal length, so that no run has more to read than another.
        static NEXT: AtomicU64 = AtomicU64::new(1_000_000_000);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        CodeSample {
            code: self.code.replace("{n}", &number.to_string()),
            answer: format!("{}\n", (self.answer)(number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_samples_are_unique() {
        for workload in WORKLOADS {
            let (one, two) = (workload.code_sample(), workload.code_sample());
            assert_ne!(one.code, two.code);
            assert_ne!(one.answer, two.answer);
            assert!(!one.code.contains("{n}"), "{}", one.code);
        }
    }
}
