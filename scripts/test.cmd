@echo off
rem Run all checks of the project (scripts\checks.py) in .venv. --fast: checks that take seconds; --all: also the longest
rem tests. Other arguments go to pytest, which then runs alone.
setlocal
for %%I in ("%~dp0..") do set "ROOT=%%~fI"
call "%ROOT%\scripts\venv.cmd" --dev || exit /b 1
"%ROOT%\.venv\Scripts\python.exe" "%ROOT%\scripts\checks.py" %*
exit /b %ERRORLEVEL%
