# Removes from belljar's default image what programs in a sandbox do not need. Runs at the end of a build, with the names
# of the added Debian packages as arguments.
set -eu
cd /

# What Debian's own slim images leave out, and leftovers of the installation.
find usr/share/doc -type f ! -name copyright -delete
find usr/share/doc -depth -type d -empty -delete
rm -rf usr/share/man usr/share/info usr/share/locale usr/share/lintian usr/share/bug usr/share/bash-completion \
    var/cache/apt/*.bin var/cache/debconf/* var/lib/dpkg/*-old var/lib/dpkg/info/*.md5sums var/log/*.log var/log/apt

# Servers of git, its ways to send mail and to write over WebDAV, and second copies of its program.
rm -rf usr/bin/git-shell usr/bin/scalar usr/share/gitweb
for name in daemon http-backend http-fetch http-push imap-send shell; do rm -f "usr/lib/git-core/git-$name"; done
rm -f usr/lib/git-core/scalar usr/lib/git-core/git
[ ! -e usr/bin/git ] || ln -s ../../bin/git usr/lib/git-core/git

# Modules of perl beyond those of perl-base, which git itself does not need.
case " $* " in
*perl*) ;;
*) rm -rf usr/share/perl/5.* usr/lib/*/perl/5.* usr/lib/*/libperl.so.* ;;
esac

# Types for editors, Python's own tests, Windows programs, compiled files that are used once, encodings of mainframes.
rm -rf usr/share/nodejs/@types usr/lib/*/libicutu.so.* usr/lib/*/libicutest.so.* usr/lib/python3.*/lib-dynload/_test* \
    usr/lib/python3.*/test usr/lib/python3.*/idlelib usr/lib/python3.*/lib2to3 \
    usr/lib/python3.*/pydoc_data usr/lib/*/gconv/EBCDIC* usr/lib/*/gconv/IBM* usr/lib/*/gconv/MAC* \
    usr/lib/*/gconv/ISO-2022* usr/lib/*/gconv/ISO_* usr/lib/*/gconv/CSN* usr/lib/*/gconv/INIS* usr/lib/*/gconv/libISOIR*
[ -d usr/lib/python3/dist-packages ] || exit 0
cd usr/lib/python3/dist-packages
find . -name '*.exe' -delete
for name in pip setuptools pkg_resources wheel; do
    [ ! -d $name ] || find $name -name __pycache__ -prune -exec rm -r {} +
done
