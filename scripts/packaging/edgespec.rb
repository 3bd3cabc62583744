# Template of a Homebrew formula, for a tap: VERSION and SHA256 are those of the release.
class Edgespec < Formula
  desc "Local runtime for GGUF language models with exact speculative decoding"
  homepage "https://github.com/edgespec/edgespec"
  url "https://github.com/edgespec/edgespec/releases/download/vVERSION/edgespec-VERSION.tar.gz"
  sha256 "SHA256"
  license "MIT"

  depends_on arch: :arm64
  depends_on "python@3.13"

  def install
    system Formula["python@3.13"].opt_bin/"python3.13", "-m", "venv", libexec
    page = "https://github.com/edgespec/edgespec/releases/expanded_assets/v#{version}"
    system libexec/"bin/python", "-m", "pip", "install", "--find-links", page, "#{buildpath}[all]"
    bin.install_symlink libexec/"bin/edgespec"
  end

  test do
    assert_match ", exact kernels", shell_output("#{bin}/edgespec --version")
    assert_match(/\S/, shell_output("#{bin}/edgespec run -m demo --raw 'import os' -n 8"))
  end
end
