//! Modules that code finds in an open sandbox without a package layer: files of its workspace, and packages that
//! its programs have installed.

use crate::language::Language;
use crate::plan::WORKSPACE;
use crate::sandbox_handle::Files;

/// Where `pip` installs packages of the sandbox user, below a folder for each version of Python.
const USER_LIBRARIES: &str = "/home/sandbox/.local/lib";
/// Maximum number of pages that are listed of one folder, of 256 entries each.
const MAX_PAGES: usize = 8;
const PAGE_ENTRIES: u32 = 256;
/// Maximum number of folders that are listed below another one.
const MAX_FOLDERS: usize = 16;

/// Returns the names of the modules. A folder that cannot be listed has none.
pub(crate) async fn present_modules(files: &dyn Files, language: &Language) -> Vec<String> {
    match language.name {
        "python" => {
            let mut modules = list(files, WORKSPACE).await;
            for version in list(files, USER_LIBRARIES).await.into_iter().take(MAX_FOLDERS) {
                modules.extend(list(files, &format!("{USER_LIBRARIES}/{version}/site-packages")).await);
            }
            modules
        }
        "javascript" | "typescript" => {
            let folder = format!("{WORKSPACE}/node_modules");
            let mut modules = list(files, &folder).await;
            let scopes: Vec<_> = modules.iter().filter(|name| name.starts_with('@')).cloned().collect();
            for scope in scopes.into_iter().take(MAX_FOLDERS) {
                let names = list(files, &format!("{folder}/{scope}")).await;
                modules.extend(names.into_iter().map(|name| format!("{scope}/{name}")));
            }
            modules
        }
        _ => Vec::new(),
    }
}

/// Returns the names of the entries of a folder.
async fn list(files: &dyn Files, folder: &str) -> Vec<String> {
    let (mut names, mut after) = (Vec::new(), None);
    for _ in 0..MAX_PAGES {
        let Ok(page) = files.list(folder, after, PAGE_ENTRIES).await else { break };
        names.extend(page.entries.into_iter().map(|entry| entry.name));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    names
}
