# shellcheck shell=bash disable=SC2034,SC2154
# What tests/vm/nfs/run and tests/vm/power/run share: a kernel, one tree of files for all their virtual machines, the clean-up.
# The script sets `proof` (its directory), `programs` and `modules` (the contents of the machines) and `packages` first.

skipped() {
    echo "SKIPPED $proof: $*" >&2
    exit 0
}

for program in qemu-system-x86_64 cpio modprobe mkfs.ext4 ldd "${programs[@]}"; do
    command -v "$program" > /dev/null || skipped "no $program (Debian: $packages)"
done
kernel=
for kernel in ${KERNEL:-$(printf '%s\n' /boot/vmlinuz-* | sort -rV)}; do
    release=${kernel##*/vmlinuz-}
    [[ -r $kernel ]] && modprobe -S "$release" --show-depends "${modules[-1]}" > /dev/null 2>&1 && break
    kernel=
done
[[ $kernel ]] || skipped "no readable kernel in /boot with the module ${modules[-1]} (Debian: linux-image-cloud-amd64)"
csalock=${1:-}
for built in "${CARGO_TARGET_DIR:-target}"/{,x86_64-unknown-linux-musl/}{debug,release,checked}/csalock; do
    if [[ ! ${1:-} && -x $built && (! $csalock || $built -nt $csalock) ]]; then csalock=$built; fi
done
[[ -x $csalock ]] || skipped "no csalock: build it first, or name it"
accel=tcg
if [[ -w /dev/kvm ]] && grep -qwE 'vmx|svm' /proc/cpuinfo; then accel=kvm; fi

work=$(mktemp -d)
pids=()
cleanup() {
    kill -KILL "${pids[@]}" 2> /dev/null || true
    wait 2> /dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM HUP
mkdir -p "$work"/tree/{bin,etc,proc,sys,dev,run,tmp,srv,modules}
echo root:x:0:0:root:/:/bin/sh | tee "$work/tree/etc/passwd" | sed s/:root.*/:/ > "$work/tree/etc/group"

# One tree for all machines: busybox, a few programs with their libraries, kernel modules in the order of loading.
build_tree() {
    local tree=$work/tree program file
    cp "$csalock" "$tree/bin/csalock"
    for program in "${programs[@]}" "$csalock"; do
        file=$(command -v "$program")
        [[ $program == */* ]] || cp -L "$file" "$tree/bin/"
        { ldd "$file" 2> /dev/null || true; } | sed -nE 's,.*[[:space:]](/[^ ]+).*,\1,p' | while read -r file; do
            mkdir -p "$tree/${file%/*}"
            cp -Ln "$file" "$tree/$file"
        done
    done
    for program in "${modules[@]}"; do
        modprobe -S "$release" --show-depends "$program" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
    done | awk '!seen[$0]++' > "$work/modules"
    while read -r file; do
        cp "$file" "$tree/modules/"
        echo "${file##*/}"
    done < "$work/modules" > "$tree/modules/order"
    for file in netconfig protocols services rpc; do
        if [[ -r /etc/$file ]]; then cp -L "/etc/$file" "$tree/etc/"; fi
    done
    cp "$proof/init" "$tree/init"
    (cd "$tree" && find . -print0 | cpio --quiet -0 -o -H newc) > "$work/initramfs"
}
